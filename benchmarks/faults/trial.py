"""One fault: wait for the moment, strike, and see the device go back to serving and be lent again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.faults.clients import answers
from benchmarks.faults.fleet import Fleet
from benchmarks.faults.plan import Fault, Victim
from benchmarks.faults.watch import PageWatch
from rose.clock import monotonic_ns, utc_us

#: Rollouts work and serving has been seen, before a fault.
_LENDING_TIMEOUT_S = 180.0
_RECENT_NS = 1_000_000_000
_MOMENT_TIMEOUT_S = 20.0
_MOMENT_LOOK_S = 0.002
#: Time for the consequences of a fault to show, however soon it is mended.
OBSERVED_S = 6.0
_RECOVERY_TIMEOUT_S = 180.0
_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What one fault did, as seen from outside. Monotonic nanoseconds where it does not say otherwise.

    `*_ns` are None for what did not happen in the time that was waited.
    """

    number: int
    fault: Fault
    pid: int
    #: Of a part of the rollout engine: the pid of its server, by which the ledger knows it.
    engine_pid: int | None
    #: Whether serving wanted the device at the signal.
    wanted: bool
    at_ns: int
    at_us: int
    #: The lease in force at the fault.
    lease: int
    #: The part was there again: started anew, or continued.
    replaced_ns: int | None
    #: First rollout work under a lease after that.
    lending_ns: int | None
    until_ns: int
    until_us: int


class Striker:
    """Runs trials against a fleet that is being watched."""

    def __init__(self, fleet: Fleet, watch: PageWatch) -> None:
        self._fleet, self._watch = fleet, watch

    def wait_lending(self) -> bool:
        """Whether rollouts work under a lease, at the latest when the time is over."""
        return self._wait(self._lending, _LENDING_TIMEOUT_S)

    def strike(self, number: int, fault: Fault) -> Trial | None:
        """One trial; None if the part was not there, or nothing was lent. Raises FleetError if the deployment ends."""
        if not self.wait_lending():
            return None
        victim = self._fleet.find(fault.victim)
        if victim is None:
            return None
        server = self._fleet.find(Victim.SERVER) if fault.victim in (Victim.SCHEDULER, Victim.SERVER) else None
        self._await_moment(fault)
        lease = self._watch.lease(monotonic_ns())
        if lease is None:
            return None
        wanted = bool(self._fleet.page.serving_wants())
        try:
            victim.send_signal(signal.SIGKILL if fault.stop_s is None else signal.SIGSTOP)
        except psutil.NoSuchProcess:
            return None
        at_ns, at_us = monotonic_ns(), utc_us()
        replaced_ns = self._await_replaced(fault, victim)
        lending_ns = None if replaced_ns is None else self._await_lending(replaced_ns)
        left_s = OBSERVED_S - (monotonic_ns() - at_ns) / 1e9
        self._sleep(left_s)
        return Trial(
            number=number, fault=fault, pid=victim.pid, engine_pid=None if server is None else server.pid,
            wanted=wanted, at_ns=at_ns, at_us=at_us, lease=lease.number, replaced_ns=replaced_ns,
            lending_ns=lending_ns, until_ns=monotonic_ns(), until_us=utc_us(),
        )  # fmt: skip

    # ------------------------------------------------------------------ waiting

    def _lending(self) -> bool:
        now = monotonic_ns()
        return self._watch.lease(now) is not None and self._watch.works_since(now - _RECENT_NS) is not None

    def _await_moment(self, fault: Fault) -> None:
        """Return when serving wants the device, or when it does not and rollouts work; at worst at any time."""
        page, burst = self._fleet.page, fault.moment == "burst"
        deadline = time.monotonic() + _MOMENT_TIMEOUT_S
        while time.monotonic() < deadline:
            now = monotonic_ns()
            if self._watch.lease(now) is not None and bool(page.serving_wants()) == burst:
                break
            time.sleep(_MOMENT_LOOK_S)
        time.sleep(fault.delay_s)

    def _await_replaced(self, fault: Fault, victim: psutil.Process) -> int | None:
        if fault.stop_s is not None:
            try:
                self._sleep(fault.stop_s)
            finally:
                with suppress(psutil.NoSuchProcess):
                    victim.send_signal(signal.SIGCONT)
            return monotonic_ns()

        def replaced() -> bool:
            process = self._fleet.find(fault.victim)
            there = process is not None and process != victim and process.status() != psutil.STATUS_ZOMBIE
            return there and (fault.victim is not Victim.GATEWAY or answers(f"{self._fleet.gateway_url}/health"))

        return monotonic_ns() if self._wait(replaced, _RECOVERY_TIMEOUT_S) else None

    def _await_lending(self, since_ns: int) -> int | None:
        """When rollouts first worked again under a lease."""
        first: list[int] = []

        def lent() -> bool:
            work_ns = self._watch.works_since(since_ns)
            if work_ns is None or self._watch.lease(monotonic_ns()) is None:
                return False
            first.append(work_ns)
            return True

        return first[0] if self._wait(lent, _RECOVERY_TIMEOUT_S) else None

    def _wait(self, there: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(psutil.NoSuchProcess):
                if there():
                    return True
            self._fleet.check()
            time.sleep(_LOOK_S)
        return False

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self._fleet.check()
            time.sleep(min(left_s, _LOOK_S))
