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
from multiprocessing.connection import Connection
from pathlib import Path

from rose.clock import utc_us
from rose.ledger import layout
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.jobs import Job, JobRun, Last

_NICE = 19
#: How long a job that is asked to stop may take to record that.
_STOP_S = 10.0
#: How often it is seen to that the wall clock, which says when jobs are due, was not put back.
_LOOK_S = 10.0
_POLL_S = 0.2


class Scheduler:
    """Runs jobs from `start` to `stop`. Several schedulers may serve one ledger: a job runs once, not once for each.

    `on_end` is told of every run in a thread of the scheduler's, also of those that were skipped.
    """

    def __init__(self, root: Path | str, todo: Sequence[Job], on_end: Callable[[JobRun], None] | None = None) -> None:
        """Raises LedgerError if `root` is no ledger."""
        self._root = layout.check(root)
        self._jobs = todo
        self._on_end = on_end
        self._stopping = threading.Event()
        # One for each job, so that a long one never holds up the others.
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin: a job is first run one interval after its last success, and at once if that has passed."""
        # A ledger that cannot be read must not stop whoever keeps it: each job will say what is wrong.
        history: dict[str, Last] = {}
        with suppress(LedgerError):
            history = jobs.history(self._root)
        for job in self._jobs:
            due_us = jobs.due_us(job, history.get(job.name))
            thread = threading.Thread(target=self._keep, args=(job, due_us), name=f"job-{job.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Start no job any more and stop those that run; returns when they are gone."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, job: Job, due_us: int) -> None:
        """Run a job whenever it is due, until `stop`. What was missed meanwhile is one run."""
        every_us, look_us = int(job.every_s * 1e6), int(_LOOK_S * 1e6)
        while not self._stopping.is_set():
            now_us = utc_us()
            # Later than one interval from now only by a clock that was put back since.
            if now_us >= due_us or due_us > now_us + every_us + look_us:
                self._run(job)
                due_us = now_us + every_us
            else:
                self._stopping.wait(min(due_us - now_us, look_us) / 1e6)

    def _run(self, job: Job) -> None:
        """Run a job in a process of its own and wait for it. Nothing that goes wrong there is raised here."""
        context = multiprocessing.get_context("spawn")
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_in_child, args=(self._root, job, sending), name=job.name, daemon=True)
        started_us = utc_us()
        process.start()
        # Before it has loaded anything, which takes a second of a core; it may have ended already.
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        # Once the child is gone nobody holds the other end, and waiting for its answer ends.
        sending.close()
        kill_at_s = None
        while not receiving.poll(_POLL_S):
            if not self._stopping.is_set():
                continue
            if kill_at_s is None:
                process.terminate()
                kill_at_s = time.monotonic() + _STOP_S
            elif time.monotonic() > kill_at_s:
                process.kill()
        run = _answer(receiving)
        receiving.close()
        process.join()
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
