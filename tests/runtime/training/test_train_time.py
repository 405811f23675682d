from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from rose.runtime.coserving.page import ArbiterPage, Party, Span
from rose.runtime.training.train_time import NoPageError, TrainTime, page_of


@pytest.fixture
def page():
    """A page where an agent of this host has its pages."""
    folder = Path("/dev/shm") / f"rose-{uuid.uuid4().hex}"
    page = ArbiterPage.create(folder / f"device-{folder.name}" / "page")
    yield page
    page.close()
    shutil.rmtree(folder)


def test_what_is_done_inside_a_span_is_train_time_of_the_device(page):
    time = TrainTime(page_of(page.path.parent.name))
    with time.span():
        assert page.open(Party.TRAINER, 1 << 62).kind is Span.TRAIN
    with time.span():
        pass
    spans, _, lost = page.drain(Party.TRAINER, 0)
    assert ([span.kind for span in spans], lost) == ([Span.TRAIN] * 2, 0)
    assert spans[0].end_ns <= spans[1].start_ns


def test_a_device_that_has_no_agent_here_is_named_with_those_that_have(page):
    with pytest.raises(NoPageError, match=rf"no agent on this host has a device 'gpu-9' .*{page.path.parent.name}"):
        page_of("gpu-9")


def test_without_a_page_nobody_is_told():
    with TrainTime(None).span():
        pass
