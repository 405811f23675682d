"""`python -m benchmarks.faults.runs.books LEDGER`: what it has of the fleet, as JSON; with `--writers`, of whom."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from benchmarks.faults.runs.setting import PRICE_BOOK
from rose.clock import utc_us
from rose.events import BUCKETS
from rose.ledger import catalog
from rose.ledger.verify import verify
from rose.pricing.charges import price
from rose.pricing.price_books import pricebook

_NANO_PER_USD, _NS_PER_HOUR = 10**9, 3_600 * 10**9
_SUM = " + ".join(f"{bucket}_ns" for bucket in BUCKETS)
#: By name: rows that there should be none of, each as text.
_WRONG = {
    "turns that were completed more than once": """
        SELECT run_id, trajectory_id, turn FROM turn WHERE outcome = 'completed' GROUP BY ALL HAVING count(*) > 1
    """,
    "trajectories whose turns are not all there, or not with their tokens": """
        SELECT trajectory.run_id, trajectory_id, outcome, turns, done, trajectory.output_tokens, tokens
        FROM trajectory LEFT JOIN (
            SELECT run_id, trajectory_id, count(DISTINCT turn) FILTER (outcome = 'completed') AS done,
                sum(output_tokens) AS tokens
            FROM turn GROUP BY ALL
        ) USING (run_id, trajectory_id)
        WHERE outcome = 'lost' OR turns IS DISTINCT FROM done OR trajectory.output_tokens IS DISTINCT FROM tokens
    """,
    "trajectories that are there twice": """
        SELECT run_id, trajectory_id FROM trajectory GROUP BY ALL HAVING count(*) > 1
    """,
    "steps that are there twice, or are missing": """
        SELECT run_id, count(*), count(DISTINCT step), max(step) FROM step GROUP BY ALL
        HAVING count(*) <> count(DISTINCT step) OR count(DISTINCT step) <> max(step) + 1
    """,
    "steps without a verdict for each trajectory": """
        SELECT step.run_id, step.step, trajectories, count(verdict.trajectory_id) AS verdicts
        FROM step LEFT JOIN verdict ON verdict.run_id = step.run_id AND verdict.step = step.step
            AND verdict.trajectory_id IN (SELECT trajectory_id FROM trajectory WHERE run_id = step.run_id)
        GROUP BY ALL HAVING count(verdict.trajectory_id) <> trajectories
    """,
    "slices that do not follow the one before": f"""
        SELECT device_id, before_ns, t0_ns FROM (
            SELECT *, lag(t1_ns) OVER (PARTITION BY device_id ORDER BY t0_ns) AS before_ns FROM device_slice
        ) WHERE before_ns <> t0_ns OR {_SUM} <> t1_ns - t0_ns
    """,
    "devices whose slices are not the time that they were there": """
        SELECT device_id, there_ns, accounted_ns
        FROM (SELECT device_id, sum(left_ns - joined_ns) AS there_ns FROM tenure GROUP BY ALL)
        LEFT JOIN (SELECT device_id, sum(ns) AS accounted_ns FROM device_slice GROUP BY ALL) USING (device_id)
        WHERE there_ns IS DISTINCT FROM accounted_ns
    """,
    "leases that did not end once": """
        SELECT lease_id, count(*) FILTER (action = 'granted'),
            count(*) FILTER (action IN ('released', 'preempted', 'expired'))
        FROM lease_event GROUP BY ALL
        HAVING count(*) FILTER (action = 'granted') <> 1
            OR count(*) FILTER (action IN ('released', 'preempted', 'expired')) <> 1
    """,
}
_RUNS = (
    "SELECT run_id, fleet_run_id, name, status, reason, tags_json::json ->> 'team' AS team FROM run ORDER BY started_at"
)
_STEPS = "SELECT run_id, count(*) AS steps FROM step GROUP BY ALL ORDER BY 1"
_TURNS = """
    SELECT run_id, device_id, placement, outcome, count(*) AS turns, sum(output_tokens)::BIGINT AS tokens
    FROM turn GROUP BY ALL ORDER BY ALL
"""
_SYNCS = """
    SELECT device_id, rl_run_id, source, route, ok, encoding, count(*) AS syncs, sum(wire_bytes)::BIGINT AS wire_bytes
    FROM sync GROUP BY ALL ORDER BY ALL
"""
_SHARED = """
    SELECT device_id, rollout_run_id, sum(rollout_ns)::BIGINT AS rollout_ns, sum(sync_ns)::BIGINT AS sync_ns
    FROM device_slice WHERE rollout_ns + sync_ns > 0 GROUP BY ALL ORDER BY ALL
"""
_WRITERS = "SELECT writer, count(*) AS events, max(seq) AS last_seq FROM event GROUP BY writer ORDER BY writer"
_TENURES = "SELECT device_class, pool, sum(left_ns - joined_ns)::BIGINT AS ns FROM tenure GROUP BY ALL"
_ROUTES = "SELECT route, sum(wire_bytes)::BIGINT AS wire_bytes FROM sync GROUP BY ALL"

Rows = Callable[[str], list[dict[str, Any]]]


def read(ledger: Path) -> dict[str, Any]:
    """All that the claims rest on, of a fleet that is down."""
    sound = verify(ledger)
    with catalog.connect(ledger) as connection:

        def rows(query: str) -> list[dict[str, Any]]:
            return _rows(connection, query)

        books: dict[str, Any] = {
            "problems": [str(problem) for problem in sound.problems],
            "wrong": {name: [list(row.values()) for row in rows(query)] for name, query in _WRONG.items()},
            "runs": rows(_RUNS),
            "steps": rows(_STEPS),
            "turns": rows(_TURNS),
            "syncs": rows(_SYNCS),
            "shared": rows(_SHARED),
            "writers": rows(_WRITERS),
            "leases": rows("SELECT device_id, count(*) AS leases FROM lease GROUP BY ALL ORDER BY ALL"),
            "requests": rows("SELECT device_id, outcome, count(*) AS requests FROM request GROUP BY ALL ORDER BY ALL"),
        }
        return books | _charges(ledger, rows)


def writers(ledger: Path) -> dict[str, Any]:
    """Whose events lie there, and how many."""
    with catalog.connect(ledger) as connection:
        return {"writers": _rows(connection, _WRITERS)}


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    found = connection.execute(query)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _charges(ledger: Path, rows: Rows) -> dict[str, Any]:
    """What each run and team is charged, and what devices and syncs come to by the book, unrounded."""
    book = pricebook.load(PRICE_BOOK)
    frame = price(ledger, book).frame
    by_run = frame.group_by("run_id", "team").agg(pl.col("cost_nano").sum()).sort("run_id", "team")
    by_kind = frame.group_by("kind").agg(pl.col("cost_nano").sum()).sort("kind")
    now_ns = utc_us() * 1_000
    exact = Fraction(0)
    for tenure in rows(_TENURES):
        rate = Fraction(book.device_at(tenure["device_class"], tenure["pool"], now_ns).usd_per_hour)
        exact += rate * _NANO_PER_USD * tenure["ns"] / _NS_PER_HOUR
    for sync in rows(_ROUTES):
        exact += Fraction(book.transfer_at(sync["route"], now_ns).usd_per_gb) * sync["wire_bytes"]
    return {
        "charges": by_run.to_dicts(),
        "kinds": by_kind.to_dicts(),
        "bill_nano": int(frame["cost_nano"].sum()),
        "exact_nano": float(exact),
        # A device's hour, and a transfer of one hour, lease, route and version, is rounded once.
        "rounded": frame.select("fleet_run_id", "device_id", "hour", "kind", "lease_id", "route", "policy_version")
        .filter(pl.col("kind") == "transfer")
        .n_unique()
        + frame.select("fleet_run_id", "device_id", "hour").n_unique(),
    }


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--writers"]
    print(json.dumps((writers if "--writers" in sys.argv else read)(Path(given[0]))))
