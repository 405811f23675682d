import shutil
import uuid
from pathlib import Path

import pytest

from rose import private_files
from rose.errors import UserError
from rose.runtime.coserving.page import ArbiterPage, Party, Span
from rose.runtime.training.train_time import NoPageError, TrainTime, page_of


@pytest.fixture
def page():
    folder = private_files.make(Path("/dev/shm") / f"rose-{uuid.uuid4().hex}")
    page = ArbiterPage.create(folder / f"device-{folder.name}" / "page")
    yield page
    page.close()
    shutil.rmtree(folder)


def test_what_is_done_inside_a_span_is_train_time_of_a_device_that_has_an_agent(page):
    with pytest.raises(NoPageError, match=rf"no agent on this host has device 'gpu-9'.*{page.path.parent.name}"):
        page_of("gpu-9")
    time = TrainTime(page_of(page.path.parent.name))
    with time.span():
        assert page.open(Party.TRAINER, 1 << 62).kind is Span.TRAIN
    with time.span():
        pass
    spans, _, lost = page.drain(Party.TRAINER, 0)
    assert ([span.kind for span in spans], lost) == ([Span.TRAIN] * 2, 0)
    assert spans[0].end_ns <= spans[1].start_ns


def test_a_page_that_is_away_for_a_while_is_told_when_it_is_back(page):
    time = TrainTime(page.path)
    with time.span():
        pass
    size = page.path.stat().st_size
    shutil.rmtree(page.path.parent)
    with time.span():
        assert not page.path.parent.exists()
    private_files.make(page.path.parent)
    page.path.touch(0o600)
    page.path.write_bytes(bytes(size))
    with time.span():
        pass
    again = ArbiterPage.create(page.path)
    with time.span():
        assert again.open(Party.TRAINER, 1 << 62).kind is Span.TRAIN
    assert len(again.drain(Party.TRAINER, 0)[0]) == 1
    again.close()


def test_a_device_on_which_another_trainer_works_is_refused(page):
    other = ArbiterPage.attach(page.path, Party.TRAINER)
    with pytest.raises(UserError, match=r"another process, pid .* writes the section TRAINER"):
        TrainTime(page.path)
    other.close()
    time = TrainTime(page.path)
    shutil.rmtree(page.path.parent)
    again = ArbiterPage.create(page.path)
    other = ArbiterPage.attach(page.path, Party.TRAINER)
    with pytest.raises(UserError, match="writes the section TRAINER"), time.span():
        pytest.fail("it trained")
    other.close()
    again.close()
