"""What the ledger says of the faults; `python -m benchmarks.faults.books LEDGER` prints it as JSON.

With `asked` it does so for each line that it is sent.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.plan import Victim
from benchmarks.faults.setting import DEVICES, ENGINES
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import PAGE
from rose.events import BUCKETS
from rose.ledger import catalog
from rose.ledger.examine import Seen
from rose.ledger.verify import verify
from tests.runtime.hosts import Host

_ASKED = "asked"
_CLOSES = ("released", "preempted", "expired")
#: The clock of a fault and that of an event are the same; what the event is about may have been seen a little before.
_EARLY_US = 50_000
_TWICE = """
    select run_id, trajectory_id, turn from turn where outcome = 'completed'
    group by all having count(*) > 1
"""
#: A trajectory whose turns are not all there, or not with its tokens, and one that the trainer gave up.
_LOST = """
    select trajectory.run_id, trajectory_id, any_value(trajectory.outcome), any_value(turns), any_value(t.done),
        any_value(trajectory.output_tokens), any_value(t.tokens)
    from trajectory left join (
        select run_id, trajectory_id, count(distinct turn) filter (outcome = 'completed') as done,
            sum(output_tokens) as tokens
        from turn group by all
    ) as t using (run_id, trajectory_id)
    group by all
    having any_value(trajectory.outcome) = 'lost' or any_value(turns) is distinct from any_value(t.done)
        or any_value(trajectory.output_tokens) is distinct from any_value(t.tokens)
"""
_STEPS = "select count(*) - count(distinct (run_id, step)), coalesce(max(step) + 1, 0) - count(distinct step) from step"
_GAPS = """
    select device_id, before_ns, t0_ns from (
        select device_id, t0_ns, lag(t1_ns) over (partition by device_id order by t0_ns) as before_ns from device_slice
    ) where before_ns <> t0_ns order by t0_ns
"""


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A change of a lease in the ledger."""

    device_id: str
    number: int
    action: str
    reason: str | None
    at_us: int


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """A change in the life of a lent engine; its pid is its number on its host."""

    engine_id: str
    action: str
    pid: int | None
    reason: str | None
    at_us: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Time of a device that no slice has, or, if it ends before it begins, that two have. UTC nanoseconds."""

    device_id: str
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class Books:
    """The parts of a run's ledger in which faults show."""

    leases: list[LeaseChanged] = field(default_factory=list)
    engines: list[EngineChanged] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    #: Time of devices' tenures less that of their slices, where both have ended.
    unaccounted_ns: dict[str, int] = field(default_factory=dict)
    #: Slices whose buckets are not their length.
    wrong_slices: int = 0
    turns: int = 0
    turns_twice: list[list[Any]] = field(default_factory=list)
    #: Known once all is recorded: at the end.
    turns_lost: list[list[Any]] = field(default_factory=list)
    steps: int = 0
    steps_twice: int = 0
    steps_missing: int = 0
    problems: list[str] = field(default_factory=list)

    def not_closed_once(self) -> dict[str, int]:
        """Leases that were granted and did not end exactly once, with how often they did."""
        closed = Counter((change.device_id, change.number) for change in self.leases if change.action in _CLOSES)
        granted = Counter((change.device_id, change.number) for change in self.leases if change.action == "granted")
        return {
            f"{device_id}-{number}": closed[device_id, number]
            for device_id, number in sorted(granted | closed)
            if closed[device_id, number] != 1 or granted[device_id, number] != 1
        }

    def trace(self, trial: Trial) -> str | None:
        """What the ledger has to say of a fault; None if nothing."""
        since_us, until_us = trial.at_us - _EARLY_US, trial.until_us
        engine_id, device_id = ENGINES[trial.fault.host], DEVICES[trial.fault.host]
        traces = [
            f"engine {change.action}" + (f" ({change.reason})" if change.reason else "")
            for change in self.engines
            if since_us <= change.at_us <= until_us and change.engine_id == engine_id
        ]
        traces += [
            f"lease {change.action}: {change.reason}"
            for change in self.leases
            if (change.device_id, change.number) == (device_id, trial.lease % PAGE)
            and change.action in _CLOSES
            and since_us <= change.at_us <= until_us
        ]
        return "; ".join(traces) or None

    def now_wrong(self) -> list[str]:
        """What is wrong whatever is still to be recorded."""
        wrong = list(self.problems)
        for what, many in (
            ("turns counted twice", len(self.turns_twice)),
            ("steps made twice", self.steps_twice),
            ("slices whose parts are not their length", self.wrong_slices),
            ("stretches of time counted twice", sum(gap.end_ns < gap.begin_ns for gap in self.gaps)),
        ):
            wrong += [f"{many} {what}"] if many else []
        return wrong

    def not_accounted(self, trials: list[Trial]) -> list[Gap]:
        """Time of devices that is missing or counted twice, but for what a host was without power."""
        off = [
            (trial.at_us, trial.until_us, DEVICES[trial.fault.host])
            for trial in trials
            if trial.fault.victim is Victim.HOST
        ]
        return [
            gap
            for gap in self.gaps
            if not any(
                gap.device_id == device_id
                and gap.begin_ns < gap.end_ns
                and begin_us * 1_000 - 10_000_000_000 <= gap.begin_ns
                and gap.end_ns <= end_us * 1_000
                for begin_us, end_us, device_id in off
            )
        ]


def read(ledger: Path, seen: Seen | None = None) -> Books:
    """The ledger as it is now; every byte of it is read, or with `seen` what was not there the last time."""
    buckets = " + ".join(f"{bucket}_ns" for bucket in BUCKETS)
    with catalog.connect(ledger) as connection:

        def rows(sql: str) -> list[Any]:
            return connection.execute(sql).fetchall()

        leases = rows("select device_id, lease_id, action, reason, epoch_us(event_time) from lease_event")
        engines = rows("select engine_id, action, pid, reason, epoch_us(event_time) from engine where role = 'rollout'")
        ((twice, missing),) = rows(_STEPS)
        unaccounted = rows(
            "select device_id, any_value(there_ns) - sum(ns) from device_slice join ("
            " select device_id, sum(left_ns - joined_ns) as there_ns from tenure group by 1"
            " having count(left_ns) = count(*)"
            ") using (device_id) group by 1"
        )
        return Books(
            leases=[LeaseChanged(device, int(name.rpartition("-")[2]), *rest) for device, name, *rest in leases],
            engines=[EngineChanged(*row) for row in engines],
            gaps=[Gap(*row) for row in rows(_GAPS)],
            unaccounted_ns={device_id: int(ns) for device_id, ns in unaccounted},
            wrong_slices=rows(f"select count(*) from device_slice where {buckets} <> t1_ns - t0_ns")[0][0],
            turns=rows("select count(*) from turn where outcome = 'completed'")[0][0],
            turns_twice=[list(row) for row in rows(_TWICE)],
            turns_lost=[[str(value) for value in row] for row in rows(_LOST)],
            steps=rows("select count(*) from step")[0][0],
            steps_twice=twice,
            steps_missing=missing,
            problems=[str(problem) for problem in verify(ledger, seen=seen).problems],
        )


def from_json(text: str) -> Books:
    """What the program printed."""
    values = json.loads(text)
    return Books(
        **values
        | {
            "leases": [LeaseChanged(**one) for one in values["leases"]],
            "engines": [EngineChanged(**one) for one in values["engines"]],
            "gaps": [Gap(**one) for one in values["gaps"]],
        }
    )


class Reader:
    """A program on a host that reads its ledger whenever it is asked, and each file of it once."""

    def __init__(self, host: Host, ledger: str) -> None:
        command = host.command([sys.executable, "-m", "benchmarks.faults.books", ledger, _ASKED])
        self._log = (host.disk / "books.log").open("w")
        self._program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True
        )
        # The fleet leaves it no time: a trial's books would take longer than the trial.
        with suppress(OSError):
            Path(f"/proc/{self._program.pid}/autogroup").write_text("-20")

    def read(self, timeout_s: float) -> Books:
        """Raises OSError if the program ended, TimeoutError if it does not answer, ValueError if it cannot read."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write("\n")
        self._program.stdin.flush()
        if not select.select([self._program.stdout], [], [], timeout_s)[0]:
            raise TimeoutError(f"the ledger was not read within {timeout_s:.0f} s")
        return from_json(self._program.stdout.readline())

    def stop(self) -> None:
        self._program.kill()
        self._program.wait()
        self._log.close()


def main() -> None:
    ledger = Path(sys.argv[1])
    if _ASKED not in sys.argv:
        print(json.dumps(asdict(read(ledger))))
        return
    seen = Seen()
    for _ in sys.stdin:
        try:
            answer = json.dumps(asdict(read(ledger, seen)))
        except Exception as error:  # Whatever it is, whoever asked is told.
            traceback.print_exc()
            answer = json.dumps(asdict(Books(problems=[f"the ledger cannot be read: {error}"])))
        print(answer, flush=True)


if __name__ == "__main__":
    main()
