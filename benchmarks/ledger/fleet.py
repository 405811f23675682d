"""A year of a thousand GPUs in roll-ups: whether the dashboard's questions are answered in a second.

The roll-ups are made up (simulated), the tail of events that no roll-up counts yet is written by a real writer.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import duckdb

from benchmarks.shared import timed
from benchmarks.traffic import Fleet
from rose.accept.report import ROOT, Report
from rose.ledger import catalog, layout
from rose.ledger.growth import rolled

#: What people ask of a fleet over a year; each reads daily views alone.
QUESTIONS = {
    "device time by bucket and month": (
        "SELECT date_trunc('month', day) AS month, sum(serving_ns), sum(rollout_ns), sum(headroom_ns), sum(idle_ns) "
        "FROM daily_device_time GROUP BY ALL ORDER BY ALL"
    ),
    "harvest share by day": (
        "SELECT day, sum(rollout_ns) / sum(rollout_ns + idle_ns + headroom_ns) FROM daily_device_time GROUP BY ALL"
    ),
    "promises kept, lent or not, by month": (
        "SELECT date_trunc('month', day), lent, sum(slo_ok) / sum(requests) FROM daily_request GROUP BY ALL"
    ),
    "p99 of the first token, lent or not": (
        "SELECT lent, min(until_ns) FROM (SELECT lent, until_ns, sum(requests) OVER (PARTITION BY lent ORDER BY bin) "
        "/ sum(requests) OVER (PARTITION BY lent) AS share FROM (SELECT lent, bin, until_ns, sum(requests) AS requests "
        "FROM daily_latency WHERE metric = 'ttft' GROUP BY ALL)) WHERE share >= 0.99 GROUP BY lent"
    ),
    "preemptions by reason and month": (
        "SELECT date_trunc('month', day), action, reason, sum(preemptions), sum(duration_ns) "
        "FROM daily_preemption GROUP BY ALL"
    ),
}
#: Events that a device writes a day, by `estimate`.
PER_DEVICE_S = {"device_slice": 1.0, "request": 1.0, "turn": 0.35, "preemption": 0.1, "lease": 0.1, "other": 0.1}


def measure(report: Report, folder: Path) -> None:
    """Make a year's roll-ups, write the last minutes' events on top, and ask."""
    devices, days, hours = (50, 30, Fleet(16, 475)) if report.quick else (1000, 365, Fleet(16, 23_750))
    root = folder / "ledger"
    tail = hours.fill(root)
    _make_roll_ups(root, devices, days)
    catalog.refresh(root)
    taken = {}
    for name, select in QUESTIONS.items():

        def ask(select: str = select) -> None:
            with catalog.connect(root) as connection:
                assert connection.execute(select).fetchall()

        taken[name] = min(timed(ask)[1] for _ in range(3))
    year = sum(PER_DEVICE_S.values()) * 86_400 * 365 * 1000
    report.claim(
        f"a year of {devices} GPUs (simulated): slowest of five questions", max(taken.values()), "s", 1, "lower"
    )
    report.detail["fleet"] = {
        "provenance": "simulated",
        "devices": devices,
        "days": days,
        "events_not_rolled_up": tail,
        "estimated_events_a_year_of_1000_devices": year,
        "roll_up_bytes": sum(path.stat().st_size for path in (root / rolled.FOLDER).rglob("*.parquet")),
        "seconds": {name: round(seconds, 3) for name, seconds in taken.items()},
    }


def _make_roll_ups(root: Path, devices: int, days: int) -> None:
    """A generation with a row for each device, day and combination of keys that a fleet really has."""
    folder = root / rolled.FOLDER / ".000000.tmp"
    folder.mkdir(parents=True)
    files = {}
    with catalog.connect(root) as ledger:
        described = {
            name: [(column, kind) for column, kind, *_ in ledger.execute(f"DESCRIBE {name}").fetchall()]
            for name in rolled.ROLLUPS
        }
    text = (ROOT / "benchmarks" / "ledger" / "fleet.sql").read_text(encoding="utf-8")
    selects = dict(part.split("\n", 1) for part in text.split("-- name: ")[1:])
    with duckdb.connect() as connection:
        connection.execute(f"SET VARIABLE devices = {devices}")
        connection.execute(f"SET VARIABLE days = {days}")
        for name in rolled.ROLLUPS:
            path = folder / f"{name}.parquet"
            if name in selects:
                given = {row[0] for row in connection.execute(f"DESCRIBE {selects[name]}").fetchall()}
                # An amount that no question reads is one.
                rest = [f'1::{kind} AS "{column}"' for column, kind in described[name] if column not in given]
                select = f"SELECT {', '.join(['*', *rest])} FROM ({selects[name].strip().rstrip(';')})"
            else:
                columns = ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in described[name])
                select = f"SELECT {columns} WHERE false"
            connection.execute(f"COPY ({select}) TO {catalog.quoted(str(path))} (COMPRESSION zstd)")
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    # A writer that is not in this ledger: all of what really was written here is the tail.
    coverage = {"generation": 0, "writers": {"year": [0, 1]}, "files": files, "ids": {}}
    layout.write_file(folder / "coverage.json", json.dumps(coverage).encode())
    folder.rename(folder.with_name("000000"))
