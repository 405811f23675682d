"""`python -m benchmarks.pricing`: times to price a fleet's ledger, against the same allocation in pandas."""

import json
import os
import statistics
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks import traffic
from benchmarks.pricing import naive, year
from benchmarks.shared import arguments, measured, output
from benchmarks.traffic import Fleet
from rose.accept.report import Report, phase
from rose.ledger.growth.compaction import compact
from rose.ledger.ledger import Ledger

CORES = 2
KEPT = "pricing.duckdb"  #: What pricing keeps of a ledger: without it, it prices from nothing.
MORE_EVENTS = 100_000
ROUNDS = 5


def main() -> None:
    options = arguments(__doc__, folder=True).parse_args()
    # Every process of the benchmark inherits these cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    report = Report("pricing", options.quick, provenance="simulated")
    with measured(report, options.json, options.folder) as folder:
        measure(report, folder)


def measure(report: Report, folder: Path) -> None:
    fleet, more = (Fleet(16, 1400), 3_000) if report.quick else (Fleet(128, 30_000), MORE_EVENTS)
    root = folder / "ledger"
    with phase("making the ledger"):
        events = fleet.fill(root)
        report.detail["ledger"] = {"events": events, "devices": fleet.devices, "seconds": fleet.seconds}
    with phase("merging its segments"):
        traffic.close_epochs(root)
        compact(Ledger(root), grace_s=0)
        compact(Ledger(root), grace_s=0)
    with phase("verifying it"):
        assert Ledger(root).verify().ok
    _from_nothing(report, root, folder, events)
    rounds = 2 if report.quick else ROUNDS
    with phase(f"pricing after {more:,} more events, {rounds} times"):
        increments = _child("increments", root, fleet.devices, fleet.seconds, more, rounds)
    after_s = increments["after_more_s"]
    report.claim(f"after {more:,} more events, median of {rounds}", statistics.median(after_s), "s", 1, "lower")
    report.claim("  slowest", max(after_s), "s", 1, "lower")
    report.detail["increments"] = increments
    with phase("pricing in a process that knows nothing"):
        kept = _child("charges", root, folder / "kept.parquet")
    (root / KEPT).unlink(missing_ok=True)
    with phase("pricing all of it from nothing"):
        fresh = _child("charges", root, folder / "fresh.parquet")
    assert kept["sha256"] == fresh["sha256"], "what was kept gives the same bytes as the events do"
    year.measure(report, folder)


def _child(way: str, root: Path, *arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(output("benchmarks.pricing.child", way, root, *arguments))
    return answer


def _from_nothing(report: Report, root: Path, folder: Path, events: int) -> None:
    """Price in both ways in turns; the faster time of each counts."""
    timings: dict[str, list[dict[str, Any]]] = {"charges": [], "naive": []}
    for number in range(1 if report.quick else 2):
        (root / KEPT).unlink(missing_ok=True)
        for way, rounds in timings.items():
            with phase(f"pricing {events:,} events from nothing, {way}"):
                rounds.append(_child(way, root, folder / f"{way}-{number}.parquet"))
    ours, theirs = (min(rounds, key=lambda one: float(one["seconds"])) for rounds in timings.values())
    assert len({one["sha256"] for one in timings["charges"]}) == 1, "the same ledger and book give the same bytes"
    apart = naive.differences(*(pl.read_parquet(folder / f"{way}-0.parquet") for way in timings))
    assert not apart, "\n".join(["the charges differ from those of pandas:", *apart])
    assert ours["total_nano"] == theirs["total_nano"]
    report.claim(f"pricing {events:,} events from nothing", ours["seconds"], "s", 15, "lower")
    report.claim("  against pandas", theirs["seconds"] / ours["seconds"], "x", 1, "higher")
    report.claim("  memory against pandas", ours["rss_peak_bytes"] / theirs["rss_peak_bytes"], "x", 1, "lower")
    report.detail["from_nothing"] = timings


if __name__ == "__main__":
    main()
