import functools
import os
import queue
import sys

import pytest

from rose.clock import utc_us
from rose.ledger.files import layout
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep import scheduler
from rose.ledger.upkeep.jobs import Job, JobRun, history, record
from rose.ledger.upkeep.scheduler import Scheduler
from tests.runtime.conftest import until

#: What jobs run lies in a module of its own: it must be found from another process.
_WORK = """
import os, signal, time
from pathlib import Path

NICE = os.nice(0)

def quick(root):
    return {"pid": os.getpid(), "nice": NICE}

def slow(root, begun):
    Path(begun).write_text(str(os.getpid()))
    time.sleep(60)

def deaf(root, begun):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    slow(root, begun)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "scheduled_work.py").write_text(_WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scheduled_work", raising=False)
    return layout.create(tmp_path / "ledger")


def wait_for(path):
    until(lambda: path.exists() and path.read_text())
    return path.read_text()


def test_jobs_run_when_they_are_due_and_no_earlier(root):
    import scheduled_work

    for name, minutes in (("due", 36), ("early", 1)):
        record(Ledger(root), JobRun(name, "ok", utc_us() - minutes * 60_000_000, 1, result={}))
    ended = queue.Queue()
    running = Scheduler(Ledger(root), [Job(name, scheduled_work.quick, 300) for name in ("due", "early")], ended.put)
    running.start()
    try:
        run = ended.get(timeout=240)
        assert (run.job, run.status, run.missed) == ("due", "ok", 6), "what was missed is caught up by one run"
        assert run.result["pid"] != os.getpid()
        assert run.result["nice"] == 19, "at the lowest priority, also while it loads what it needs"
        assert history(Ledger(root))["due"].missed == 6
        assert ended.empty()
    finally:
        running.stop()


@pytest.mark.long
def test_stopping_stops_the_jobs_that_run_also_one_that_does_not_listen(root, tmp_path, monkeypatch):
    import scheduled_work

    monkeypatch.setattr(scheduler, "_STOP_S", 0.1)
    begun = {name: tmp_path / name for name in ("slow", "deaf")}
    todo = [
        Job(name, functools.partial(getattr(scheduled_work, name), begun=str(path)), 300)
        for name, path in begun.items()
    ]
    ended = queue.Queue()
    running = Scheduler(Ledger(root), todo, ended.put)
    running.start()
    try:
        pids = [int(wait_for(path)) for path in begun.values()]
    finally:
        running.stop()
    assert {ended.get_nowait().error, ended.get_nowait().error} == {"stopped before it was done"}
    assert {last.error for last in history(Ledger(root)).values()} == {"stopped before it was done"}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
