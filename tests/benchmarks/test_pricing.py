from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.ledger import traffic as mixed
from benchmarks.pricing import compare, naive
from benchmarks.pricing.traffic import HOSTS, Fleet
from rose import events
from rose.ledger import rows
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.long_form import usual
from tests.pricing.random_ledger import BOOK, ledgers
from tests.pricing.recorded import Made

ROOT = Path(__file__).parents[2]


def test_the_made_up_fleet_adds_up() -> None:
    fleet = Fleet(16, 600)
    spans = [(0, 200), (200, 600)]
    table = pa.concat_tables(
        [fleet.batch(host, *span) for host in range(HOSTS) for span in spans], promote_options="default"
    )
    assert rows.checked(table).num_rows == table.num_rows
    made = pl.DataFrame(table)
    share = Counter(made["kind"].to_list())
    for kind, wanted in mixed.MIX.items():
        assert abs(share[kind] / made.height - wanted) < 0.02
    slices = made.filter(kind="device_slice").sort("device_id", "t0_ns")
    gaps = slices.select(pl.col("t0_ns").shift(-1).over("device_id") - pl.col("t1_ns")).to_series().drop_nulls()
    # Contiguous, but for the few that were dropped.
    assert gaps.min() == 0
    assert 0 < (gaps > 0).sum() < 0.01 * slices.height
    # What was made under a lease was made while that lease was in force.
    leases = (
        made.filter(kind="lease")
        .group_by("lease_id")
        .agg(
            pl.col("at_us").filter(pl.col("action") == "granted").min().alias("granted_us"),
            pl.col("at_us").filter(pl.col("action") == "released").min().alias("released_us"),
        )
    )
    turns = made.filter(pl.col("kind") == "turn", pl.col("lease_id").is_not_null()).join(leases, on="lease_id")
    late = turns.filter((pl.col("at_us") < pl.col("granted_us")) | (pl.col("at_us") > pl.col("released_us")))
    assert turns.height > 100
    assert late.is_empty()
    ended = set(made.filter(kind="trajectory")["trajectory_id"])
    assert set(made.filter(kind="turn")["trajectory_id"]) == ended >= set(made.filter(kind="verdict")["trajectory_id"])


def agree(root: Path, book: PriceBook) -> None:
    ours, theirs = charges.price(root, book), naive.price(root, book.text)
    assert compare.differences(compare.of_charges(ours.frame), compare.of_naive(theirs)) == []
    assert ours.total_nano == theirs["cost_nano"].sum()


@pytest.mark.long
@settings(
    max_examples=usual(2, long=20),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],
)
@given(made=ledgers(portions=1, moving=False))
def test_the_analyst_s_allocation_is_the_charges_of_any_ledger(made: Made) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder) / "ledger")
        agree(Path(folder) / "ledger", pricebook.parse(BOOK, "awkward.toml"))


@pytest.mark.long
def test_the_analyst_knows_devices_that_come_back(tmp_path: Path) -> None:
    start_ns, minute_ns = 1_780_272_000 * 10**9, 60 * 10**9
    device: dict[str, Any] = {"device_id": "d", "pool": "serving", "device_class": "owned"}

    def there(first_minute: int, last_minute: int) -> list[events.Event]:
        t0_ns, t1_ns = start_ns + first_minute * minute_ns + 7, start_ns + last_minute * minute_ns
        buckets: dict[str, Any] = {f"{name}_ns": 0 for name in events.BUCKETS} | {"serving_ns": t1_ns - t0_ns - 3}
        return [
            events.Device(action="joined", t_ns=t0_ns, at_us=t0_ns // 1000, **device),
            events.DeviceSlice(
                device_id="d", t0_ns=t0_ns, t1_ns=t0_ns + buckets["serving_ns"], at_us=t1_ns // 1000, **buckets
            ),
            events.Device(action="left", t_ns=t1_ns, at_us=t1_ns // 1000, **device),
        ]

    root, book = tmp_path / "ledger", pricebook.parse(BOOK, "awkward.toml")
    with LedgerWriter.open(root, "w", "run") as ledger:
        ledger.record(events.Run(action="started", name="r", at_us=start_ns // 1000))
        # Twice in the first hour, the second time until the next one, and once more.
        for event in (*there(0, 20), *there(31, 75), *there(100, 110)):
            ledger.record(event, durable=False)
        ledger.record(events.Run(action="ended", name="r", at_us=start_ns // 1000 + 120 * 60 * 10**6))
    agree(root, book)
    assert naive.price(root, book.text)["ns"].sum() == 74 * minute_ns - 3 * 7
    with LedgerWriter.open(root, "w", "run") as ledger:
        moved = start_ns + 115 * minute_ns
        ledger.record(events.Device(action="joined", t_ns=moved, at_us=moved // 1000, **device | {"pool": "rollout"}))
    with pytest.raises(ValueError, match="d is of two classes or pools"):
        naive.price(root, book.text)


def test_a_row_that_differs_is_named() -> None:
    key = {"run_id": "r", "hour": 1, "device_id": "d", "lease_id": "", "kind": "capacity", "bucket": "idle"}
    rest = {"policy_version": -1, "task": "", "fate": "", "cause": "", "route": "", **dict.fromkeys(naive.AMOUNTS, 0)}
    one = pl.DataFrame([{**key, **rest, "ns": 5}])
    assert compare.differences(one, one) == []
    other = pl.DataFrame([{**key, **rest, "ns": 5, "cost_nano": 1}])
    assert "'cost_nano': 0" in compare.differences(one, other)[0]
    assert "'idle'" in compare.differences(one, one.clear())[1]


def test_money_is_split_as_the_contract_says() -> None:
    assert naive.split(10, {"a": 1, "b": 1, "c": 1}) == {"a": 4, "b": 3, "c": 3}
    assert naive.split(5, {"a": 0, "b": 0}) == {"a": 3, "b": 2}
    assert naive.split(7, {"a": 3, "b": 0, "c": 4}) == {"a": 3, "b": 0, "c": 4}
    assert set(naive.BUCKETS) == set(events.BUCKETS)


@pytest.mark.long
def test_the_benchmark_measures_and_writes_its_claims(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.pricing", "--quick"]
    command += ["--folder", str(tmp_path), "--json", str(tmp_path / "report.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["claims"]) >= 4
    assert all(claim["value"] > 0 for claim in report["claims"])
    told = report["detail"]["from_nothing"]
    for amount in ("total_nano", "rows"):
        assert len({each[amount] for way in ("charges", "naive") for each in told[way]} - {0}) == 1
    assert not list(tmp_path.glob("pricing-benchmark-*")), "its ledger is removed"
