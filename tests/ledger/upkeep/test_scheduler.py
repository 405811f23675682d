from __future__ import annotations

import functools
import os
import queue
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rose.clock import utc_us
from rose.ledger import layout
from rose.ledger.upkeep import scheduler
from rose.ledger.upkeep.jobs import Job, JobRun, history, record
from rose.ledger.upkeep.scheduler import Scheduler

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
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scheduled_work.py").write_text(_WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scheduled_work", raising=False)
    return layout.create(tmp_path / "ledger")


@contextmanager
def started(root: Path, *todo: Job) -> Iterator[queue.Queue[JobRun]]:
    ended: queue.Queue[JobRun] = queue.Queue()
    running = Scheduler(root, todo, ended.put)
    running.start()
    try:
        yield ended
    finally:
        running.stop()


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 240
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def test_what_was_missed_is_caught_up_at_once_and_what_is_not_due_waits(root: Path) -> None:
    import scheduled_work

    for name, minutes in (("due", 36), ("early", 1)):
        record(root, JobRun(name, "ok", utc_us() - minutes * 60_000_000, 1, result={}))
    todo = [Job(name, scheduled_work.quick, 300) for name in ("due", "early", "new")]
    with started(root, *todo) as ended:
        runs = {run.job: run for run in (ended.get(timeout=240), ended.get(timeout=60))}
    assert ended.empty()
    assert sorted(runs) == ["due", "new"]
    assert (runs["due"].status, runs["due"].missed, runs["new"].missed) == ("ok", 6, 0)
    result = runs["due"].result or {}
    assert result["pid"] != os.getpid()
    assert result["nice"] == 19, "at the lowest priority, also while it loads what it needs"
    assert history(root)["due"].missed == 6


def test_a_clock_that_was_put_back_puts_no_job_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import scheduled_work

    monkeypatch.setattr(scheduler, "_LOOK_S", 0.05)
    # It succeeded by a clock that was a day ahead.
    record(root, JobRun("j", "ok", utc_us() + 1440 * 60_000_000, 1, result={}))
    ended: queue.Queue[JobRun] = queue.Queue()
    # A run that is due while the one before it has said that it ended, and has not yet, waits for the next interval.
    running = Scheduler(root, [Job("j", scheduled_work.quick, 3)], ended.put)
    running.start()
    try:
        assert ended.get(timeout=240).status == "ok"
        # As a clock that is put back while it runs leaves it.
        running._scheduler.modify_job("j", next_run_time=datetime.now(UTC) + timedelta(days=1))
        assert ended.get(timeout=240).status == "ok"
    finally:
        running.stop()


@pytest.mark.parametrize("work", ["slow", "deaf"])
def test_stopping_stops_the_job_that_runs_also_one_that_does_not_listen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    import scheduled_work

    if work == "deaf":
        monkeypatch.setattr(scheduler, "_STOP_S", 0.1)
    begun = tmp_path / "begun"
    job = Job("j", functools.partial(getattr(scheduled_work, work), begun=str(begun)), 300)
    with started(root, job) as ended:
        pid = int(wait_for(begun))
    assert ended.get_nowait().error == history(root)["j"].error == "stopped before it was done"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
