"""Questions of finance about a closed year of a fleet: the sums of its months as the `price` job leaves them, asked by
the commands themselves, each in a process of its own.

The sums are made up, row for row as many as such a fleet has; what a month's charges take to price and to freeze is
measured elsewhere.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from rose import events
from rose.accept.report import ROOT, Report, phase
from rose.ledger import layout
from rose.ledger.writer import LedgerWriter
from rose.pricing.charges import Charges
from rose.pricing.closing import charge_algebra, close, store
from rose.pricing.closing.period import Period, naive, of_month
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.price_books import pricebook
from rose.pricing.spend import sums

YEAR, RUNS, TEAMS = 2025, 20, 8
DEVICES, DEVICES_QUICK = 1000, 20
ROUNDS = 3
_BUCKETS = ("serving", "train", "sync", "activation", "headroom", "idle", "unaccounted")
_TASKS = ("code", "math", "maze")
_ROW_NANO = 276_923_076
QUESTIONS: dict[str, tuple[str, ...]] = {
    "cost of a year by team and bucket": ("cost", "--by", "team", "--by", "bucket"),
    "cost of a year by day and device class": ("cost", "--by", "day", "--by", "device-class"),
    "cost of a year by task and version": ("cost", "--by", "task", "--by", "version"),
    "cost of a year by project and month": ("cost", "--by", "tag:project", "--by", "month"),
    "cost of a year by hardware and bucket": ("cost", "--by", "hardware", "--by", "bucket"),
    "cost of a team's quarter by day in Berlin": (
        "cost",
        "--by",
        "day",
        "--team",
        "team-3",
        "--tz",
        "Europe/Berlin",
        "--period",
        "2026-Q3",
    ),
    "forecast of a closed month": ("forecast", "--month", f"{YEAR}-12"),
}


def measure(report: Report, folder: Path) -> None:
    """Make the year, and ask every question."""
    root, devices = folder / "year", DEVICES_QUICK if report.quick else DEVICES
    with phase(f"making a closed year of {devices:,} devices"):
        rows = make(root, devices)
    report.detail["year"] = {"devices": devices, "runs": RUNS, "rows": rows, "seconds": {}, "cpu_seconds": {}}
    with phase("asking what it cost"):
        for name, arguments in QUESTIONS.items():
            rounds = [_seconds(root, arguments) for _ in range(1 if report.quick else ROUNDS)]
            report.detail["year"]["seconds"][name] = [took for took, _ in rounds]
            # On a machine that does other things too, the cores' time is what can be told.
            report.detail["year"]["cpu_seconds"][name] = [cpu for _, cpu in rounds]
            report.claim(name, statistics.median(took for took, _ in rounds), "s", 2, "lower")


def make(root: Path, devices: int) -> dict[str, int]:
    """A ledger with the closes of a year; returns the rows of sums of each grain."""
    for number in range(RUNS):
        with LedgerWriter.open(root, f"writer-{number}", f"run-{number}", "live") as writer:
            at_us = int(datetime(YEAR, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
            tags = f'{{"team": "team-{number % TEAMS}", "project": "project-{number % 5}"}}'
            writer.record(events.Run(action="started", name=f"run {number}", at_us=at_us, tags_json=tags))
    rows = dict.fromkeys(("hour", "day"), 0)
    book = pricebook.load("example")
    for month in range(1, 13):
        period = of_month(f"{YEAR}-{month:02}")
        hourly, daily = _hourly(period, devices), _daily(period, devices)
        priced = Charges(
            frame=_frozen(hourly),
            stays=(),
            from_ns=period.from_ns,
            to_ns=period.to_ns,
            provenance="live",
            verified=True,
            book=book,
        )
        posting, contents = close.make_posting(
            close_id=f"{period.label}-live-1",
            number=0,
            priced=priced,
            frame=priced.frame,
            rows_file=store.CHARGES_FILE,
            more_files={close.BOOK_FILE: book.text.encode()},
            book_file=close.BOOK_FILE,
            watermark={},
            posted_us=period.to_ns // 1000,
            by="benchmark",
        )
        with store.lock(root):
            store.post(root, posting, contents)
        for grain, frame in (("hour", hourly), ("day", daily)):
            path = sums.of_posting(root, posting, "hour" if grain == "hour" else "day")
            assert isinstance(path, Path)
            layout.write_file(path, store.parquet(frame))
            rows[grain] += frame.height
    return rows


def _seconds(root: Path, arguments: tuple[str, ...]) -> tuple[float, float]:
    """How long a command took, and the time of cores that it took, seconds."""
    command = [sys.executable, "-m", "rose.cli", *arguments, "--ledger", str(root), "--csv"]
    if arguments[0] == "cost" and "--period" not in arguments:
        command += ["--period", str(YEAR)]
    before, began = _cpu_s(), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return took, _cpu_s() - before


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _hourly(period: Period, devices: int) -> pl.DataFrame:
    """A row for each hour, run, bucket, and version and task of rollouts."""
    hours = pl.datetime_range(naive(period.from_ns), naive(period.to_ns), "1h", closed="left", eager=True)
    runs = _runs().with_columns(count=pl.lit(devices // RUNS))
    return _sums(pl.DataFrame({"hour": hours}), runs, hours=1)


def _daily(period: Period, devices: int) -> pl.DataFrame:
    """The same for each day and device."""
    days = pl.datetime_range(naive(period.from_ns), naive(period.to_ns), "1d", closed="left", eager=True)
    named = pl.DataFrame({"number": range(devices)}).select(
        (pl.col("number") % RUNS).alias("run"),
        ("device-" + pl.col("number").cast(pl.String)).alias("device_id"),
        ("GPU-" + pl.col("number").cast(pl.String)).alias("hardware_id"),
        count=pl.lit(1),
    )
    return _sums(pl.DataFrame({"hour": days}), _runs().join(named, on="run"), hours=24)


def _runs() -> pl.DataFrame:
    return pl.DataFrame({"run": range(RUNS)}).with_columns(
        run_id="run-" + pl.col("run").cast(pl.String),
        team="team-" + (pl.col("run") % TEAMS).cast(pl.String),
        pool=pl.when(pl.col("run") % 2 == 0).then(pl.lit("serving")).otherwise(pl.lit("rollout")),
        device_class=pl.when(pl.col("run") % 3 == 0).then(pl.lit("h100-sxm")).otherwise(pl.lit("a100-sxm")),
    )


def _sums(times: pl.DataFrame, runs: pl.DataFrame, *, hours: int) -> pl.DataFrame:
    kinds: list[dict[str, Any]] = [{"bucket": bucket, "behind": None, "task": None} for bucket in _BUCKETS]
    kinds += [{"bucket": "rollout", "behind": behind, "task": task} for behind in (0, 1) for task in _TASKS]
    schema: dict[str, Any] = {"bucket": pl.String, "behind": pl.Int64, "task": pl.String}
    rows = times.join(runs, how="cross").join(pl.DataFrame(kinds, schema=schema), how="cross")
    number = pl.col("count").cast(pl.Int64) * hours
    devices = [name for name in sums.DEVICE_KEYS if name in rows.columns]
    return rows.select(
        "hour",
        "run_id",
        "pool",
        "device_class",
        "team",
        "bucket",
        (pl.col("hour").dt.ordinal_day().cast(pl.Int64) - pl.col("behind")).alias("policy_version"),
        "task",
        *devices,
        (number * (NS_PER_HOUR // 13)).alias("ns"),
        pl.when(pl.col("bucket") == "rollout").then(number * 100_000).otherwise(0).alias("tokens"),
        (number * _ROW_NANO).alias("cost_nano"),
    )


def _frozen(hourly: pl.DataFrame) -> pl.DataFrame:
    """A few rows that come to the same: the frozen ones are not read where their sums are kept."""
    summed = hourly.group_by("run_id", "pool", "device_class", "team", "bucket").agg(
        pl.col("hour").min(), *(pl.col(name).sum() for name in sums.AMOUNTS)
    )
    columns = (*charge_algebra.DIMENSIONS, *charge_algebra.AMOUNTS, *charge_algebra.REFERENCES)
    whole = ("policy_version", "bytes", "energy_mw_ns", "first_seq", "last_seq")
    more = {name: pl.lit(None, pl.Int64 if name in whole else pl.String) for name in columns if name not in summed}
    more |= {
        "bytes": pl.lit(0, pl.Int64),
        "energy_mw_ns": pl.lit(0, pl.Int64),
        "provenance": pl.lit("live"),
        "kind": pl.lit("capacity"),
    }
    return charge_algebra.canonical(summed.with_columns(**more).select(columns))
