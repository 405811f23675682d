"""The scheduler: runs the jobs of a ledger when they are due, each in a process of its own at low priority.

So neither the interpreter nor the cores of the process that has the scheduler are taken, and a job that is killed
takes nothing with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from rose.clock import utc_us
from rose.ledger import layout
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.jobs import Job, JobRun

_NICE = 19
#: How long a job that is asked to stop may take to record that.
_STOP_S = 10.0
#: How often it is seen to that the wall clock, which says when jobs are due, was not put back.
_LOOK_S = 10.0


class Scheduler:
    """Runs jobs from `start` to `stop`. Several schedulers may serve one ledger: a job runs once, not once for each.

    `on_end` is told of every run in a thread of the scheduler's, also of those that were skipped.
    """

    def __init__(self, root: Path | str, todo: Sequence[Job], on_end: Callable[[JobRun], None] | None = None) -> None:
        """Raises LedgerError if `root` is no ledger."""
        self._root = layout.check(root)
        self._jobs = todo
        self._on_end = on_end
        # A thread for each, so that a long one never holds up the others.
        pool = ThreadPoolExecutor(max(1, len(todo)))
        self._scheduler = BackgroundScheduler(timezone=UTC, executors={"default": pool})
        self._mutex = threading.Lock()
        self._running: set[BaseProcess] = set()
        self._stopping = threading.Event()
        self._looking = threading.Thread(target=self._look, name="upkeep-clock", daemon=True)

    def start(self) -> None:
        """Begin: a job is first run one interval after its last success, and at once if that has passed."""
        # A ledger that cannot be read must not stop whoever keeps it: each job will say what is wrong.
        history: dict[str, jobs.Last] = {}
        with suppress(LedgerError):
            history = jobs.history(self._root)
        now_us = utc_us()
        for job in self._jobs:
            first_us = max(now_us, jobs.due_us(job, history.get(job.name)))
            self._scheduler.add_job(
                self._run,
                "interval",
                [job],
                seconds=job.every_s,
                id=job.name,
                name=job.name,
                next_run_time=datetime.fromtimestamp(first_us / 1e6, UTC),
                # However late this process is, a job that is due runs, once.
                misfire_grace_time=None,
                coalesce=True,
                max_instances=1,
            )
        self._scheduler.start()
        self._looking.start()

    def _look(self) -> None:
        """No job is due later than one interval from now, but where the clock was put back: then it is at once."""
        while not self._stopping.wait(_LOOK_S):
            now = datetime.now(UTC)
            for job in self._jobs:
                waiting = self._scheduler.get_job(job.name)
                if waiting is not None and waiting.next_run_time > now + timedelta(seconds=job.every_s + _LOOK_S):
                    waiting.modify(next_run_time=now)

    def stop(self) -> None:
        """Start no job any more and stop those that run; returns when they are gone."""
        with self._mutex:
            self._stopping.set()
            for process in self._running:
                process.terminate()
        if self._looking.ident is not None:
            self._looking.join()
        self._scheduler.shutdown()

    def _run(self, job: Job) -> None:
        """Run a job in a process of its own and wait for it. Nothing that goes wrong there is raised here."""
        context = multiprocessing.get_context("spawn")
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_in_child, args=(self._root, job, sending), name=job.name, daemon=True)
        started_us = utc_us()
        with self._mutex:
            if self._stopping.is_set():
                return
            process.start()
            # Before it has loaded anything, which takes a second of a core; it may have ended already.
            assert process.pid is not None
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
            self._running.add(process)
        # Once the child is gone nobody holds the other end, and waiting for its answer ends.
        sending.close()
        kill_at_s = None
        while not receiving.poll(1.0):
            if self._stopping.is_set():
                kill_at_s = kill_at_s or time.monotonic() + _STOP_S
                if time.monotonic() > kill_at_s:
                    process.kill()
        run = _answer(receiving)
        receiving.close()
        process.join()
        with self._mutex:
            self._running.discard(process)
        if run is None:
            run = self._died(job, started_us, process.exitcode)
        if self._on_end is not None:
            self._on_end(run)

    def _died(self, job: Job, started_us: int, exit_code: int | None) -> JobRun:
        """Record, instead of a process that no longer could, that a job's run failed."""
        how = f"signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
        error = jobs.STOPPED if self._stopping.is_set() else f"the job's process ended by {how}"
        duration_ns = (utc_us() - started_us) * 1000
        return jobs.record(self._root, JobRun(job.name, "failed", started_us, duration_ns, error=error))


def _answer(receiving: Connection) -> JobRun | None:
    """What a job's process said; None if it ended without a word."""
    try:
        run: JobRun = receiving.recv()
    except EOFError:
        return None
    return run


def _in_child(root: Path, job: Job, answer: Connection) -> None:
    """What the process of a job does."""
    # Ctrl-C reaches the whole group: whoever has the scheduler decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    # A parent that was killed hears no answer; the run is in the ledger all the same.
    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            run = jobs.run_job(root, job, only_if_due=True)
        except LedgerError as error:
            run = JobRun(job.name, "failed", utc_us(), error=str(error))
        except Exception:
            # Stopped while it imports something, that may fail in any way.
            if not stopped.is_set():
                raise
            return
        answer.send(run)
