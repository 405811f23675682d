"""Work beside a running engine: one job at a time, in a thread, and in portions where the device is lent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rose.clock import monotonic_ns
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.turns import Turn

#: On the host's cores a job is background work, as trainers are.
_HOST_NICE = 10

#: What is called with the start and the end of work on the device, in monotonic nanoseconds.
RecordSpan = Callable[[int, int], None]


class GivenUpError(Exception):
    """A later job takes this one's place."""


class Background:
    """Runs jobs, each of which is given up for the next one. `start` and `busy` are the scheduler thread's.

    A job on the device calls `wait_for_device` before each portion, in any of its threads, and `record_span` learns
    when portions ran: spans do not overlap, and one call of it ends before the next, but the thread is not always the
    same. With `host_cores` a job that calls `settle` runs there instead, at a niceness of its own.
    """

    def __init__(
        self, wait_for_device: Callable[[], None], host_cores: Sequence[int], record_span: RecordSpan | None
    ) -> None:
        self._wait_for_device = wait_for_device
        self._host_cores = frozenset(host_cores)
        self._record_span = record_span
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()
        self._ending = threading.Lock()
        self._busy = False
        #: How many threads are within a portion, and since when any is.
        self._counting = threading.Lock()
        self._working = 0
        self._working_since_ns = 0

    @property
    def busy(self) -> bool:
        """Whether a job has been started and not ended."""
        return self._busy

    def give_up(self) -> None:
        """Have the job under way end with its portion: what it came to is not called any more. Does not wait for it."""
        with self._ending:
            self._given_up.set()
            self._busy = False

    def start(self, job: Callable[[Turn], Callable[[], None]]) -> None:
        """Have a thread run `job`, once the one before has ended, which is given up. Waits for neither.

        `job` is given what to enter around each portion, which raises GivenUpError once it is given up; it should let
        that pass. What it returns is called unless it was given up, and it cannot be meanwhile.
        """
        self.give_up()
        self._given_up, self._busy = threading.Event(), True
        arguments = (job, self._given_up, self._thread)
        self._thread = threading.Thread(target=self._run, args=arguments, name="rose-weights", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Move the calling thread of a job to the host's cores, if there are any, and those it will start with it.

        Raises TransferError if it may not run there.
        """
        if not self._host_cores:
            return
        try:
            os.sched_setaffinity(0, self._host_cores)
        except OSError as error:
            raise TransferError(
                f"host_cores {sorted(self._host_cores)} cannot be used ({error.strerror}); give cores of this host "
                "that the engine may run on, or none"
            )
        be_nice(_HOST_NICE)

    def _run(
        self,
        job: Callable[[Turn], Callable[[], None]],
        given_up: threading.Event,
        before: threading.Thread | None,
    ) -> None:
        if before is not None:
            before.join()

        @contextmanager
        def turn() -> Iterator[None]:
            if not self._host_cores and not given_up.is_set():
                self._wait_for_device()
            if given_up.is_set():
                raise GivenUpError
            self._enter()
            try:
                yield
            finally:
                self._leave()

        try:
            end = job(turn)
        except GivenUpError:
            return
        with self._ending:
            if not given_up.is_set():
                self._busy = False
                end()

    def _enter(self) -> None:
        with self._counting:
            if not self._working:
                self._working_since_ns = monotonic_ns()
            self._working += 1

    def _leave(self) -> None:
        with self._counting:
            self._working -= 1
            if not self._working and self._record_span is not None and not self._host_cores:
                self._record_span(self._working_since_ns, monotonic_ns())


def be_nice(nice: int) -> None:
    """Give the calling thread, and those it will start, this niceness; one that may not be given is left as it is."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
