"""Questions of finance about a closed year of simulated charges."""

import statistics
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.shared import output, timed
from rose import events
from rose.accept.report import Report, phase
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.charges import Charges
from rose.pricing.charges.pricing import COLUMNS
from rose.pricing.closing import close
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.period import Period, naive, of_month
from rose.pricing.price_books import pricebook

YEAR, RUNS, TEAMS = 2025, 20, 8
DEVICES, DEVICES_QUICK = 100, 20
ROUNDS = 3
_BUCKETS = ("serving", "train", "sync", "activation", "headroom", "idle", "unaccounted")
_TASKS = ("code", "math", "maze")
_ROW_NANO = 276_923_076
QUESTIONS = {  #: Each question by the command that answers it.
    "cost of a year by team and bucket": f"cost --by team --by bucket --period {YEAR}",
    "cost of a year by day and device class": f"cost --by day --by device-class --period {YEAR}",
    "cost of a year by task and version": f"cost --by task --by version --period {YEAR}",
    "cost of a year by project and month": f"cost --by tag:project --by month --period {YEAR}",
    "cost of a year by hardware and bucket": f"cost --by hardware --by bucket --period {YEAR}",
    "cost of a team's quarter by day in Berlin": f"cost --by day --team team-3 --tz Europe/Berlin --period {YEAR}-Q3",
    "forecast of a closed month": f"forecast --month {YEAR}-12",
}


def measure(report: Report, folder: Path) -> None:
    root, devices = folder / "year", DEVICES_QUICK if report.quick else DEVICES
    with phase(f"making a closed year of {devices:,} devices"):
        rows = make(root, devices)
    seconds = {}
    with phase("asking what it cost"):
        for name, question in QUESTIONS.items():
            ask = partial(output, "rose.cli", *question.split(), "--ledger", root, "--json")
            seconds[name] = [timed(ask)[1] for _ in range(1 if report.quick else ROUNDS)]
            report.claim(name, statistics.median(seconds[name]), "s", 10, "lower")
    report.detail["year"] = {"devices": devices, "runs": RUNS, "rows": rows, "seconds": seconds}


def make(root: Path, devices: int) -> int:
    for number in range(RUNS):
        with LedgerWriter.open(root, f"writer-{number}", f"run-{number}", "live") as writer:
            at_us = int(datetime(YEAR, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
            tags = f'{{"team": "team-{number % TEAMS}", "project": "project-{number % 5}"}}'
            writer.record(events.Run(action="started", name=f"run {number}", at_us=at_us, tags_json=tags))
    rows, book = 0, pricebook.load("example")
    for month in range(1, 13):
        period = of_month(f"{YEAR}-{month:02}")
        priced = Charges(
            frame=_charges(period, devices),
            stays=(),
            from_ns=period.from_ns,
            to_ns=period.to_ns,
            provenance="live",
            verified=True,
            book=book,
        )
        with Ledger(root).lock("closing"):
            close.post(
                Ledger(root),
                close_id=f"{period.label}-live-1",
                number=0,
                priced=priced,
                frame=priced.frame,
                more_files={close.BOOK_FILE: book.text.encode()},
                book_file=close.BOOK_FILE,
                watermark={},
                posted_us=period.to_ns // 1000,
                by="benchmark",
            )
        rows += priced.frame.height
    return rows


def _charges(period: Period, devices: int) -> pl.DataFrame:
    """Return a row for each hour, device, bucket, and version and task of rollouts."""
    hours = pl.datetime_range(naive(period.from_ns), naive(period.to_ns), "1h", closed="left", eager=True)
    run = pl.col("number") % RUNS
    named = pl.DataFrame({"number": range(devices)}).select(
        run_id="run-" + run.cast(pl.String),
        team="team-" + (run % TEAMS).cast(pl.String),
        pool=pl.when(run % 2 == 0).then(pl.lit("serving")).otherwise(pl.lit("rollout")),
        device_class=pl.when(run % 3 == 0).then(pl.lit("h100-sxm")).otherwise(pl.lit("a100-sxm")),
        device_id="device-" + pl.col("number").cast(pl.String),
        hardware_id="GPU-" + pl.col("number").cast(pl.String),
    )
    kinds: list[dict[str, Any]] = [{"bucket": bucket, "behind": None, "task": None} for bucket in _BUCKETS]
    kinds += [{"bucket": "rollout", "behind": behind, "task": task} for behind in (0, 1) for task in _TASKS]
    schema: dict[str, Any] = {"bucket": pl.String, "behind": pl.Int64, "task": pl.String}
    rows = pl.DataFrame({"hour": hours}).join(named, how="cross").join(pl.DataFrame(kinds, schema=schema), how="cross")
    rows = rows.with_columns(
        fleet_run_id="run_id",
        provenance=pl.lit("live"),
        kind=pl.lit("capacity"),
        policy_version=pl.col("hour").dt.ordinal_day().cast(pl.Int64) - pl.col("behind"),
        ns=pl.lit(NS_PER_HOUR // 13),
        tokens=pl.when(pl.col("bucket") == "rollout").then(100_000).otherwise(0).cast(pl.Int64),
        bytes=pl.lit(0, pl.Int64),
        energy_mw_ns=pl.lit(0, pl.Int64),
        cost_nano=pl.lit(_ROW_NANO, pl.Int64),
        first_seq=pl.lit(None, pl.Int64),
        last_seq=pl.lit(None, pl.Int64),
    )
    missing = [name for name in COLUMNS if name not in rows.columns]
    return rows.with_columns(pl.lit(None, pl.String).alias(name) for name in missing).select(COLUMNS)
