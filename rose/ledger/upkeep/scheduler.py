"""The scheduler runs due jobs, each in its own process at low priority."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from rose.clock import utc_us
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.jobs import Job, JobRun

_NICE = 19
_STOP_S = 10.0


class Scheduler:
    """Runs jobs from `start` to `stop`. A thread calls `on_end` after each run, also after a skipped one."""

    def __init__(self, ledger: Ledger, todo: Sequence[Job], on_end: Callable[[JobRun], None] | None = None) -> None:
        self._ledger, self._jobs, self._on_end = ledger, todo, on_end
        pool = ThreadPoolExecutor(max(1, len(todo)))
        self._scheduler = BackgroundScheduler(timezone=UTC, executors={"default": pool})
        self._mutex = threading.Lock()
        self._running: set[BaseProcess] = set()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the scheduler. A job first runs one interval after its last success, or after the ledger was made."""
        history: dict[str, jobs.Last] = {}
        with suppress(LedgerError):
            history = jobs.history(self._ledger)
        made_us = jobs.made_us(self._ledger)
        for job in self._jobs:
            due_us = jobs.due_us(job, history.get(job.name), made_us)
            self._scheduler.add_job(
                self._run,
                "interval",
                [job],
                seconds=job.every_s,
                id=job.name,
                next_run_time=datetime.fromtimestamp(max(utc_us(), due_us) / 1e6, UTC),
                misfire_grace_time=None,
            )
        self._scheduler.start()

    def stop(self) -> None:
        with self._mutex:
            self._stopping.set()
            for process in self._running:
                process.terminate()
        self._scheduler.shutdown()

    def _run(self, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        receiving, sending = context.Pipe(duplex=False)
        arguments = self._ledger.folder, job, sending
        process = context.Process(target=_in_child, args=arguments, name=job.name, daemon=True)
        started_us = utc_us()
        with self._mutex:
            if self._stopping.is_set():
                return
            process.start()
            # Before its imports, which take a second of a core. It may have ended already.
            assert process.pid is not None
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
            self._running.add(process)
        sending.close()  # The poll ends when the child, which holds the other end alone, is gone.
        kill_at_s = None
        while not receiving.poll(1.0):
            if self._stopping.is_set():
                kill_at_s = kill_at_s or time.monotonic() + _STOP_S
                if time.monotonic() > kill_at_s:
                    process.kill()
        run: JobRun | None = None
        with receiving, suppress(EOFError):
            run = receiving.recv()
        process.join()
        with self._mutex:
            self._running.discard(process)
        if run is None:
            run = self._died(job, started_us, process.exitcode)
        if self._on_end is not None:
            self._on_end(run)

    def _died(self, job: Job, started_us: int, exit_code: int | None) -> JobRun:
        how = f"signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
        error = jobs.STOPPED if self._stopping.is_set() else f"the job's process ended by {how}"
        duration_ns = (utc_us() - started_us) * 1000
        return jobs.record(self._ledger, JobRun(job.name, "failed", started_us, duration_ns, error=error))


def _in_child(folder: Path, job: Job, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but the scheduler decides.
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            run = jobs.run_job(Ledger(folder), job, only_if_due=True)
        except LedgerError as error:
            run = JobRun(job.name, "failed", utc_us(), error=str(error))
        except Exception:
            if not stopped.is_set():
                raise
            return
        answer.send(run)
