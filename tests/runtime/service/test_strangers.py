"""Another user of the host who makes a fleet's folder first neither has it nor keeps the host from starting."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.service import places
from rose.runtime.service.host import HostRunner
from tests import strangers
from tests.runtime.service import own_serving
from tests.runtime.service.own_serving import until


@pytest.fixture
def home(monkeypatch):
    with strangers.everybodys_folder() as folder:
        monkeypatch.setattr(places, "_SHARED_MEMORY", folder)
        yield folder


@pytest.fixture
def plan(home, tmp_path):
    """A host that begins, and then waits for a trace that is not there."""
    plan = own_serving.plan_of(tmp_path)
    traffic = plan.config.traffic.model_copy(update={"trace": str(tmp_path / "trace.csv")})
    return replace(plan, config=plan.config.model_copy(update={"traffic": traffic}))


def begin_and_end(plan):
    runner = HostRunner(plan)
    running = threading.Thread(target=runner.run)
    running.start()
    try:
        until(lambda: runner.report().doing.startswith("cannot read trace"), 60.0)
    finally:
        runner.stop(leave=True)
        running.join()


def test_a_host_that_starts_again_has_the_folder_and_the_pages_that_it_had(plan):
    begin_and_end(plan)
    memory = plan.memory
    page = ArbiterPage.create(memory / "s" / "page")
    page.close()
    begin_and_end(plan)
    assert plan.memory == memory
    again = ArbiterPage.create(memory / "s" / "page")
    assert again.inode == page.inode
    again.close()
    plan.remove_memory()
    assert not memory.exists()
    begin_and_end(plan)
    assert plan.memory == memory


@strangers.needs_another_user
@pytest.mark.parametrize(
    "trap", ["mkdir -m 0777 {memory} && ln -s {victim} {memory}/host.lock", "ln -s {decoy} {memory}"]
)
def test_one_whose_folder_another_user_made_takes_another_and_empties_no_file(plan, home, tmp_path, trap):
    victim, decoy = tmp_path / "victim", home / "decoy"
    victim.write_text("precious")
    decoy.mkdir(mode=0o700)
    begin_and_end(plan)
    memory = plan.memory
    plan.remove_memory()
    assert strangers.succeeds(trap.format(memory=memory, victim=victim, decoy=decoy))
    begin_and_end(plan)
    assert plan.memory != memory
    assert plan.memory.parent == home
    assert (plan.memory / "host.lock").is_file()
    assert victim.read_text() == "precious"
    assert list(decoy.iterdir()) == []
