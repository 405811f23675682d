"""Does one job at a time, in a thread beside a running engine. On a lent device, a job is done in portions."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rose.clock import monotonic_ns
from rose.transfer.errors import TransferError
from rose.transfer.turns import Turn

_HOST_NICE = 10  # jobs on the host's cores are background work, as trainers are

RecordSpan = Callable[[int, int], None]  # learns the start and the end of work on the device, monotonic ns


class GivenUpError(Exception):
    """The job was given up, because a later one replaces it."""


class Background:
    """Runs one job at a time in a thread on `host_cores`. Without host cores, the job works on the device: it calls
    `wait_for_device` before each portion of work, and `record_span` gets the begin and end of the work. Only the
    scheduler's thread may use `start` and `busy`."""

    def __init__(
        self, wait_for_device: Callable[[], None], host_cores: Sequence[int], record_span: RecordSpan | None
    ) -> None:
        self._wait_for_device = wait_for_device
        self._host_cores = frozenset(host_cores)
        self._record_span = record_span
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()
        self._ending = threading.Lock()
        self.busy = False
        self._counting = threading.Lock()
        self._working = 0
        self._working_since_ns = 0

    def give_up(self) -> None:
        """Without waiting, tell the job to stop after the portion that runs now. Its final function is not called."""
        with self._ending:
            self._given_up.set()
            self.busy = False

    def start(self, job: Callable[[Turn], Callable[[], None]]) -> None:
        """Give up the former job, and start `job` without waiting. `job` is called with a function `turn`, and must do
        each portion of its work in a block `with turn():`. If the job was given up, entering the block raises
        GivenUpError. `job` returns its final function, which is called at the end."""
        self.give_up()
        self._given_up, self.busy = threading.Event(), True
        arguments = (job, self._given_up, self._thread)
        self._thread = threading.Thread(target=self._run, args=arguments, name="rose-weights", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Move the calling thread to the host's cores. Raises TransferError if the system forbids it."""
        if not self._host_cores:
            return
        try:
            os.sched_setaffinity(0, self._host_cores)
        except OSError as error:
            raise TransferError(
                f"host_cores {sorted(self._host_cores)} cannot be used ({error.strerror}): name cores of this host "
                "that the engine may run on, or leave host_cores out"
            )
        be_nice(_HOST_NICE)

    def _run(
        self, job: Callable[[Turn], Callable[[], None]], given_up: threading.Event, before: threading.Thread | None
    ) -> None:
        if before is not None:
            before.join()

        @contextmanager
        def turn() -> Iterator[None]:
            if not self._host_cores and not given_up.is_set():
                self._wait_for_device()
            if given_up.is_set():
                raise GivenUpError
            with self._counting:
                if not self._working:
                    self._working_since_ns = monotonic_ns()
                self._working += 1
            try:
                yield
            finally:
                with self._counting:
                    self._working -= 1
                    if not self._working and self._record_span is not None and not self._host_cores:
                        self._record_span(self._working_since_ns, monotonic_ns())

        try:
            end = job(turn)
        except GivenUpError:
            return
        with self._ending:
            if not given_up.is_set():
                self.busy = False
                end()


def be_nice(nice: int) -> None:
    """Set the niceness of the calling thread and its later threads, if allowed."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
