"""Reads the records of a run with faults: `python -m benchmarks.faults.books LEDGER` prints JSON. `asked` prints once
for each line of input, `priced` adds charges, `writers` prints the writers."""

import json
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl

from benchmarks.faults.plan import Victim
from benchmarks.faults.setting import DEVICES, ENGINES, PRICE_BOOK
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import PAGE
from rose.clock import utc_us
from rose.events import BUCKETS
from rose.ledger.files import catalog
from rose.ledger.files.examine import Seen
from rose.ledger.ledger import Ledger
from rose.pricing.charges import price
from rose.pricing.price_books import pricebook
from rose.terminal import echo
from tests.runtime.hosts import Host

_CLOSES = ("released", "preempted", "expired")
_EARLY_US = 50_000  #: An event may be recorded this long before its fault.
_OFF_NS = 10_000_000_000
_SUM = " + ".join(f"{bucket}_ns" for bucket in BUCKETS)
_WRONG_NOW = {  #: Queries that must return no row at any time.
    "turns counted twice": """
        SELECT run_id, trajectory_id, turn FROM turn WHERE outcome = 'completed' GROUP BY ALL HAVING count(*) > 1
    """,
    "trajectories recorded twice": """
        SELECT run_id, trajectory_id FROM trajectory GROUP BY ALL HAVING count(*) > 1
    """,
    "steps made twice": "SELECT run_id, step FROM step GROUP BY ALL HAVING count(*) > 1",
    "slices whose parts are not their length": f"""
        SELECT device_id, t0_ns FROM device_slice WHERE {_SUM} <> t1_ns - t0_ns
    """,
}
_WRONG_THEN = {  #: Queries that must return no row once everything is recorded.
    "trajectories that lost a turn or its tokens": """
        SELECT trajectory.run_id, trajectory_id, any_value(trajectory.outcome), any_value(turns), any_value(done),
            any_value(trajectory.output_tokens), any_value(tokens)
        FROM trajectory LEFT JOIN (
            SELECT run_id, trajectory_id, count(DISTINCT turn) FILTER (outcome = 'completed') AS done,
                sum(output_tokens) AS tokens
            FROM turn GROUP BY ALL
        ) USING (run_id, trajectory_id)
        GROUP BY ALL
        HAVING any_value(trajectory.outcome) = 'lost' OR any_value(turns) IS DISTINCT FROM any_value(done)
            OR any_value(trajectory.output_tokens) IS DISTINCT FROM any_value(tokens)
    """,
    "runs that lack a step": """
        SELECT run_id, count(DISTINCT step), max(step) FROM step GROUP BY ALL
        HAVING count(DISTINCT step) <> max(step) + 1
    """,
    "steps without a verdict for each trajectory": """
        SELECT step.run_id, step.step, trajectories, count(verdict.trajectory_id) AS verdicts
        FROM step LEFT JOIN verdict ON verdict.run_id = step.run_id AND verdict.step = step.step
            AND verdict.trajectory_id IN (SELECT trajectory_id FROM trajectory WHERE run_id = step.run_id)
        GROUP BY ALL HAVING count(verdict.trajectory_id) <> trajectories
    """,
    "leases that did not end exactly once": f"""
        SELECT lease_id, count(*) FILTER (action = 'granted'), count(*) FILTER (action IN {_CLOSES}) FROM lease_event
        GROUP BY ALL
        HAVING count(*) FILTER (action = 'granted') <> 1 OR count(*) FILTER (action IN {_CLOSES}) <> 1
    """,
}
_GAPS = """
    SELECT device_id, before_ns, t0_ns FROM (
        SELECT device_id, t0_ns, lag(t1_ns) OVER (PARTITION BY device_id ORDER BY t0_ns) AS before_ns FROM device_slice
    ) WHERE before_ns <> t0_ns ORDER BY t0_ns
"""
#: Time of devices' tenures less time of their slices, where both have ended.
_UNACCOUNTED = """
    SELECT device_id, (any_value(tenure_ns) - coalesce(sum(ns), 0))::BIGINT
    FROM (
        SELECT device_id, sum(left_ns - joined_ns) AS tenure_ns FROM tenure GROUP BY 1 HAVING count(left_ns) = count(*)
    ) LEFT JOIN device_slice USING (device_id) GROUP BY 1
"""
_TABLES = {
    "runs": """
        SELECT run_id, fleet_run_id, name, status, reason, tags_json::json ->> 'team' AS team
        FROM run ORDER BY started_at
    """,
    "steps": "SELECT run_id, count(*) AS steps FROM step GROUP BY ALL ORDER BY 1",
    "turns": """
        SELECT run_id, device_id, placement, outcome, count(*) AS turns, sum(output_tokens)::BIGINT AS tokens
        FROM turn GROUP BY ALL ORDER BY ALL
    """,
    "syncs": """
        SELECT device_id, rl_run_id, source, route, ok, encoding, count(*) AS syncs,
            sum(wire_bytes)::BIGINT AS wire_bytes
        FROM sync GROUP BY ALL ORDER BY ALL
    """,
    "shared": """
        SELECT device_id, rollout_run_id, sum(rollout_ns)::BIGINT AS rollout_ns, sum(sync_ns)::BIGINT AS sync_ns
        FROM device_slice WHERE rollout_ns + sync_ns > 0 GROUP BY ALL ORDER BY ALL
    """,
    "writers": "SELECT writer, count(*) AS events FROM event GROUP BY writer ORDER BY writer",
}
_TENURES = "SELECT device_class, pool, sum(left_ns - joined_ns)::BIGINT AS ns FROM tenure GROUP BY ALL"
_ROUTES = "SELECT route, sum(wire_bytes)::BIGINT AS wire_bytes FROM sync GROUP BY ALL"
_NANO_PER_USD, _NS_PER_HOUR = 10**9, 3_600 * 10**9

Rows = Callable[[str], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    device_id: str
    number: int
    action: str
    reason: str | None
    at_us: int


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """A change of a lent engine; `pid` is its number on its host."""

    engine_id: str
    action: str
    pid: int | None
    reason: str | None
    at_us: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Device time without a slice, or in two if it ends before it begins. UTC nanoseconds."""

    device_id: str
    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return abs(self.end_ns - self.begin_ns)


@dataclass(slots=True)
class Books:
    leases: list[LeaseChanged] = field(default_factory=list)
    engines: list[EngineChanged] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    unaccounted_ns: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, list[list[str]]] = field(default_factory=dict)  #: Rows that should not exist, by problem.
    problems: list[str] = field(default_factory=list)
    #: Sums, for the detail and for claims about runs.
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: Charges, and the cost of devices and syncs by the price book; empty unless the ledger was priced.
    bill: dict[str, Any] = field(default_factory=dict)

    def trace(self, trial: Trial) -> str | None:
        """Return a fault's events in the ledger as text; None without events."""
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
        doubled = sum(gap.end_ns < gap.begin_ns for gap in self.gaps)
        return [
            *self.problems,
            *(f"{len(rows)} {what}" for what, rows in self.wrong.items() if rows and what in _WRONG_NOW),
            *([f"{doubled} stretches of time counted twice"] if doubled else []),
        ]

    def not_accounted(self, trials: Sequence[Trial] = ()) -> list[Gap]:
        """Return device time that is missing or doubled, except on hosts without power."""
        off = [
            (1000 * trial.at_us, 1000 * trial.until_us, DEVICES[trial.fault.host])
            for trial in trials
            if trial.fault.victim is Victim.HOST
        ]
        return [
            gap
            for gap in self.gaps
            if not any(
                gap.device_id == device_id
                and gap.begin_ns < gap.end_ns
                and begin_ns - _OFF_NS <= gap.begin_ns
                and gap.end_ns <= end_ns
                for begin_ns, end_ns, device_id in off
            )
        ]


def read(ledger: Path, seen: Seen | None = None, *, priced: bool = False) -> Books:
    with catalog.connect(ledger) as connection:

        def values(query: str) -> list[tuple[Any, ...]]:
            return connection.execute(query).fetchall()

        leases = values("SELECT device_id, lease_id, action, reason, epoch_us(event_time) FROM lease_event")
        engines = values(
            "SELECT engine_id, action, pid, reason, epoch_us(event_time) FROM engine WHERE role = 'rollout'"
        )
        return Books(
            leases=[LeaseChanged(device, int(name.rpartition("-")[2]), *rest) for device, name, *rest in leases],
            engines=[EngineChanged(*row) for row in engines],
            gaps=[Gap(*row) for row in values(_GAPS)],
            unaccounted_ns=dict(values(_UNACCOUNTED)),
            wrong={
                name: [[str(value) for value in row] for row in values(query)]
                for name, query in (_WRONG_NOW | _WRONG_THEN).items()
            },
            problems=[str(problem) for problem in Ledger(ledger).verify().problems],
            tables={name: _rows(connection, query) for name, query in _TABLES.items()},
            bill=_bill(ledger, lambda query: _rows(connection, query)) if priced else {},
        )


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    result = connection.execute(query)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _bill(ledger: Path, rows: Rows) -> dict[str, Any]:
    """Return the charges of runs and teams, and the unrounded cost by the price book."""
    book = pricebook.load(PRICE_BOOK)
    frame = price(Ledger(ledger), book).frame
    now_ns = utc_us() * 1_000
    exact = Fraction(0)
    for tenure in rows(_TENURES):
        rate = Fraction(book.device_at(tenure["device_class"], tenure["pool"], now_ns).usd_per_hour)
        exact += rate * _NANO_PER_USD * tenure["ns"] / _NS_PER_HOUR
    for sync in rows(_ROUTES):
        exact += Fraction(book.transfer_at(sync["route"], now_ns).usd_per_gb) * sync["wire_bytes"]
    transfers = ("fleet_run_id", "device_id", "hour", "kind", "lease_id", "route", "policy_version")
    return {
        "charges": frame.group_by("run_id", "team").agg(pl.col("cost_nano").sum()).sort("run_id", "team").to_dicts(),
        "nano": int(frame["cost_nano"].sum()),
        "exact_nano": float(exact),
        # Each device-hour is rounded once, and so is each transfer of one hour, lease, route and version.
        "rounded": frame.filter(pl.col("kind") == "transfer").select(transfers).n_unique()
        + frame.select("fleet_run_id", "device_id", "hour").n_unique(),
    }


class Reader:
    """A program on a host that reads its ledger on request."""

    def __init__(self, host: Host, ledger: str) -> None:
        command = host.command([sys.executable, "-m", "benchmarks.faults.books", ledger, "asked"])
        self._log = (host.disk / "books.log").open("w")
        self._program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True
        )
        with suppress(OSError):  # Without priority the busy fleet would leave it no time.
            Path(f"/proc/{self._program.pid}/autogroup").write_text("-20")

    def read(self, timeout_s: float) -> Books:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write("\n")
        self._program.stdin.flush()
        if not select.select([self._program.stdout], [], [], timeout_s)[0]:
            raise TimeoutError(f"the ledger was not read within {timeout_s:.0f} s")
        return msgspec.json.decode(self._program.stdout.readline(), type=Books)

    def stop(self) -> None:
        self._program.kill()
        self._program.wait()
        self._log.close()


def main() -> None:
    ledger, how = Path(sys.argv[1]), sys.argv[2:]
    if how == ["writers"]:
        with catalog.connect(ledger) as connection:
            echo(json.dumps(_rows(connection, _TABLES["writers"])))
        return
    if how != ["asked"]:
        echo(msgspec.json.encode(read(ledger, priced=how == ["priced"])).decode())
        return
    seen = Seen()
    for _ in sys.stdin:
        try:
            answer = read(ledger, seen)
        except Exception as error:  # The caller hears of any error.
            traceback.print_exc()
            answer = Books(problems=[f"the ledger cannot be read: {error}"])
        echo(msgspec.json.encode(answer).decode())
        sys.stdout.flush()


if __name__ == "__main__":
    main()
