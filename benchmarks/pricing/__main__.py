"""`python -m benchmarks.pricing`: what pricing a fleet's ledger takes, from nothing and after more events, against the
same allocation in pandas, which must come to the same charges."""

from __future__ import annotations

import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks import traffic
from benchmarks.pricing import naive, year
from benchmarks.shared import answer, arguments, measured, timed
from benchmarks.traffic import Fleet
from rose.accept.report import Report, phase
from rose.ledger.growth.compaction import compact
from rose.ledger.verify import verify

CORES = 2
#: What pricing keeps of a ledger: without it, it prices from nothing.
KEPT = "pricing.duckdb"
MORE_EVENTS = 100_000
ROUNDS = 5
_child = partial(answer, "pricing.child")


def main() -> None:
    """Make the ledger, price it in every way, and compare; the exit code is 0 when the measuring itself worked."""
    given = arguments(__doc__, folder=True).parse_args()
    # Every process of the benchmark has as many, whatever the machine has.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    report = Report("pricing", given.quick, provenance="simulated")
    with (
        measured(report, given.json),
        tempfile.TemporaryDirectory(prefix="pricing-benchmark-", dir=given.folder) as folder,
    ):
        measure(report, Path(folder))


def measure(report: Report, folder: Path) -> None:
    """All of it, in the order in which a ledger lives."""
    fleet, more = (Fleet(16, 1400), 3_000) if report.quick else (Fleet(128, 30_000), MORE_EVENTS)
    root = folder / "ledger"
    with phase("making the ledger"):
        events, made_s = timed(lambda: fleet.fill(root))
        report.detail["ledger"] = {
            "provenance": "simulated",
            "events": events,
            "devices": fleet.devices,
            "hours": round(fleet.seconds / 3600, 2),
            "made_s": round(made_s, 1),
        }
    with phase("merging its segments"):
        traffic.close_epochs(root)
        compact(root, grace_s=0)
        compact(root, grace_s=0)
    with phase("verifying it"):
        sound, seconds = timed(lambda: verify(root))
        assert sound.ok
        report.detail["verify_s"] = round(seconds, 2)
    _from_nothing(report, root, folder, events)
    rounds = 2 if report.quick else ROUNDS
    with phase(f"pricing after {more:,} more events, {rounds} times"):
        told = _child("increments", root, fleet.devices, fleet.seconds, more, rounds)
    report.claim(
        f"after {more:,} more events, median of {rounds}", statistics.median(told["after_more_s"]), "s", 1, "lower"
    )
    report.claim("  slowest", max(told["after_more_s"]), "s", 1, "lower")
    report.detail["increments"] = told
    with phase("pricing in a process that knows nothing"):
        kept = _child("charges", root, folder / "kept.parquet")
    (root / KEPT).unlink(missing_ok=True)
    with phase("pricing all of it from nothing"):
        fresh = _child("charges", root, folder / "fresh.parquet")
    assert kept["sha256"] == fresh["sha256"], "what was kept gives the same bytes as the events do"
    report.detail["kept_s"] = round(kept["seconds"], 2)
    with phase("closing, and FOCUS rows"):
        report.detail["books"] = _child("books", root, folder)
    year.measure(report, folder)


def _from_nothing(report: Report, root: Path, folder: Path, events: int) -> None:
    """Both ways, twice, in turns: a slow moment of the machine falls on both. The faster time of each counts."""
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
