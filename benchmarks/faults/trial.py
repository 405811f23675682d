"""One trial: wait, strike, and watch until the device is lent again."""

import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.faults.fleet import Fleet
from benchmarks.faults.plan import AWAY, Fault, HostName, Victim
from benchmarks.faults.processes import kill
from benchmarks.faults.setting import HOSTS
from rose.clock import monotonic_ns, utc_us

_LENDING_TIMEOUT_S = 240.0  #: Timeout for rollouts to work before a fault.
_RECENT_NS = 2_000_000_000
_MOMENT_TIMEOUT_S = 20.0
_TRIES = 5  #: A lease may end during the wait for the moment.
_MOMENT_LOOK_S = 0.002
OBSERVED_S = 6.0  #: Least time for the consequences of a fault to show.
_RECOVERY_TIMEOUT_S = 300.0  #: Timeout for the struck part to come back and be lent again.
_LOOK_S = 0.1
_POWER_OFF_S = 3.0  #: Time of a host without power, and the most by which its clock is ahead afterwards.
_CLOCK_MAX_S = 100_000
_CLOCK_SET_MAX_S = 7_200  #: The most by which a wall clock is set ahead or back.


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The outcome of one fault. Times are monotonic nanoseconds, and None after a timeout."""

    number: int
    fault: Fault
    at_ns: int
    at_us: int
    lease: int  #: The lease in force on the struck host's device, as the watch numbers it.
    replaced_ns: int | None
    lending_ns: int | None  #: When rollouts first worked on the struck host's device after that.
    until_ns: int
    until_us: int
    serving_anew: tuple[HostName, ...] = ()  #: Hosts that kept their power and whose serving engine was started anew.
    wrong: tuple[str, ...] = ()


class Striker:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._luck = fleet, random.Random(seed)

    def wait_lending(self, host: HostName, timeout_s: float = _LENDING_TIMEOUT_S) -> bool:
        return self._wait(lambda: self._lending(host), timeout_s)

    def strike(self, number: int, fault: Fault) -> Trial | None:
        """Run one trial; return None without the part or a lease. Raises FleetError."""
        fleet = self._fleet
        watch = fleet.watches[fault.host]
        for _ in range(_TRIES):
            if not self.wait_lending(fault.host):
                continue
            before = self._parts(fault)
            serving = {host: fleet.serving_pid(host) for host in HOSTS}
            self._await_moment(fault)
            lease = watch.lease(monotonic_ns())
            is_there = bool(before) or fault.victim in AWAY | {Victim.HOST}
            if is_there and lease is not None and watch.page is not None:
                break
        else:
            return None
        at_ns, at_us = monotonic_ns(), utc_us()
        back = self._blow(fault, before)
        if back is None:
            return None
        try:
            if fault.stop_s is not None:
                self._sleep(fault.stop_s)
        finally:
            back()
        if fault.stop_s is not None:
            replaced_ns: int | None = monotonic_ns()
        else:
            replaced_ns = self._await_replaced(fault, before)
        lending_ns = None if replaced_ns is None else self._await_lending(fault.host, replaced_ns)
        self._sleep(OBSERVED_S - (monotonic_ns() - at_ns) / 1e9)
        until_ns, until_us = monotonic_ns(), utc_us()
        anew = tuple(
            host
            for host in HOSTS
            if not (fault.victim is Victim.HOST and fault.host == host)
            and serving[host] is not None
            and fleet.serving_pid(host) not in (serving[host], None)
        )
        return Trial(
            number=number,
            fault=fault,
            at_ns=at_ns,
            at_us=at_us,
            lease=lease.number,
            replaced_ns=replaced_ns,
            lending_ns=lending_ns,
            until_ns=until_ns,
            until_us=until_us,
            serving_anew=anew,
        )

    def _blow(self, fault: Fault, parts: Sequence[psutil.Process]) -> Callable[[], object] | None:
        fleet, host = self._fleet, self._fleet.hosts[fault.host]
        match fault.victim:
            case Victim.HOST:
                fleet.lose(fault.host)
                return lambda: self._power_on(fault.host)
            case Victim.LINE:
                host.unplug()
                return host.plug_in
            case Victim.DISK:
                with suppress(AssertionError, subprocess.TimeoutExpired):  # A writer may take the last byte first.
                    fleet.fill()
                return fleet.empty
            case Victim.CLOCK:
                host.set_clock(self._luck.choice((-1, 1)) * self._luck.randrange(60, _CLOCK_SET_MAX_S))
                return lambda: host.set_clock(0)
        if fault.stop_s is None:
            return (lambda: None) if kill(parts, signal.SIGKILL) else None
        return (lambda: kill(parts, signal.SIGCONT)) if kill(parts, signal.SIGSTOP) else None

    def _power_on(self, host: HostName) -> None:
        self._sleep(_POWER_OFF_S)
        self._fleet.boot(host, self._luck.randrange(1, _CLOCK_MAX_S))

    def _parts(self, fault: Fault) -> Sequence[psutil.Process]:
        return [] if fault.victim in AWAY | {Victim.HOST} else self._fleet.find(fault.victim, fault.host)

    def _lending(self, host: HostName) -> bool:
        now, watch = monotonic_ns(), self._fleet.watches[host]
        return watch.lease(now) is not None and watch.works_since(now - _RECENT_NS) is not None

    def _await_moment(self, fault: Fault) -> None:
        watch, burst = self._fleet.watches[fault.host], fault.moment == "burst"
        deadline = time.monotonic() + (0.0 if self._fleet.setting.made else _MOMENT_TIMEOUT_S)
        while time.monotonic() < deadline:
            page = watch.page
            if page is not None and watch.lease(monotonic_ns()) is not None and bool(page.serving_wants()) == burst:
                break
            time.sleep(_MOMENT_LOOK_S)
        time.sleep(fault.delay_s)

    def _await_replaced(self, fault: Fault, before: Sequence[psutil.Process]) -> int | None:
        fleet = self._fleet

        def replaced() -> bool:
            if fault.victim is Victim.HOST:
                return fleet.serving_url(fault.host) is not None
            now = self._parts(fault)
            return len(now) >= len(before) and not set(now) & set(before)

        return monotonic_ns() if self._wait(replaced, _RECOVERY_TIMEOUT_S) else None

    def _await_lending(self, host: HostName, since_ns: int) -> int | None:
        watch = self._fleet.watches[host]
        first: list[int] = []

        def lent() -> bool:
            work_ns = watch.works_since(since_ns)
            if work_ns is None or watch.lease(monotonic_ns()) is None:
                return False
            first.append(work_ns)
            return True

        return first[0] if self._wait(lent, _RECOVERY_TIMEOUT_S) else None

    def _wait(self, met: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with suppress(psutil.Error, OSError):
                if met():
                    return True
            self._fleet.check()
            time.sleep(_LOOK_S)
        return False

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self._fleet.check()
            time.sleep(min(left_s, _LOOK_S))
