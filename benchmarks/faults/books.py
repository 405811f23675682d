"""What the ledger says of the faults, once everything is stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.fleet import ENGINE
from benchmarks.faults.plan import Victim
from benchmarks.faults.trial import Trial
from rose.ledger import catalog
from rose.ledger.verify import verify

_CLOSES = ("released", "preempted", "expired")
#: The clock of a fault and that of an event are the same; what the event is about may have been seen a little before.
_EARLY_US = 50_000


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A change of a lease in the ledger."""

    number: int
    action: str
    reason: str | None
    at_us: int


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """A change in the life of the lent engine."""

    action: str
    pid: int | None
    reason: str | None
    at_us: int


@dataclass(slots=True)
class Books:
    """The parts of a run's ledger in which faults show."""

    leases: list[LeaseChanged] = field(default_factory=list)
    engines: list[EngineChanged] = field(default_factory=list)
    #: Times at which trajectories were played that stand in for lost ones.
    replayed_us: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def not_closed_once(self) -> dict[int, int]:
        """Leases that were granted and did not end exactly once, with how often they did."""
        closed = Counter(change.number for change in self.leases if change.action in _CLOSES)
        granted = {change.number for change in self.leases if change.action == "granted"}
        return {number: closed[number] for number in sorted(granted | set(closed)) if closed[number] != 1}

    def trace(self, trial: Trial) -> str | None:
        """What the ledger has to say of a fault; None if nothing."""
        since_us, until_us = trial.at_us - _EARLY_US, trial.until_us
        traces = [
            f"engine {change.action}" + (f" ({change.reason})" if change.reason else "")
            for change in self.engines
            if since_us <= change.at_us <= until_us and (change.action == "started" or change.pid == trial.engine_pid)
        ]
        traces += [
            f"lease {change.action}: {change.reason}"
            for change in self.leases
            if change.number == trial.lease and change.action in _CLOSES and since_us <= change.at_us <= until_us
        ]
        if trial.fault.victim is Victim.WORKER:
            played = [at_us for at_us in self.replayed_us if at_us >= since_us]
            traces += ["trajectories played again"] if played else []
        return "; ".join(traces) or None


def read(ledger: Path, run_id: str) -> Books:
    """The ledger of a run that has ended."""
    with catalog.connect(ledger) as connection:
        leases = connection.execute("select lease_id, action, reason, epoch_us(event_time) from lease_event").fetchall()
        engines = connection.execute(
            "select action, pid, reason, epoch_us(event_time) from engine where engine_id = ?", [ENGINE]
        ).fetchall()
        again = connection.execute(
            "select epoch_us(event_time) from turn where trajectory_id like '%-r%-%' and starts_with(run_id, ?)",
            [run_id],
        ).fetchall()
    return Books(
        leases=[LeaseChanged(int(name.rpartition("-")[2]), *rest) for name, *rest in leases],
        engines=[EngineChanged(*row) for row in engines],
        replayed_us=[at_us for (at_us,) in again],
        problems=[str(problem) for problem in verify(ledger).problems],
    )
