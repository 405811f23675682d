from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.pricing import naive
from rose import events
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.pricing.random_ledger import BOOK, ledgers
from tests.pricing.recorded import Made

ROOT = Path(__file__).parents[2]


def agree(root: Path, book: PriceBook) -> None:
    ours, theirs = charges.price(root, book), naive.price(root, book.text)
    assert naive.differences(naive.of_charges(ours.frame), naive.of_naive(theirs)) == []
    assert ours.total_nano == theirs["cost_nano"].sum()


@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],
)
@given(made=ledgers(portions=1, moving=False))
def test_the_analyst_s_allocation_is_the_charges_of_any_ledger(made: Made) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder) / "ledger")
        agree(Path(folder) / "ledger", pricebook.parse(BOOK, "awkward.toml"))


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
    assert naive.differences(one, one) == []
    other = pl.DataFrame([{**key, **rest, "ns": 5, "cost_nano": 1}])
    assert "'cost_nano': 0" in naive.differences(one, other)[0]
    assert "'idle'" in naive.differences(one, one.clear())[1]
