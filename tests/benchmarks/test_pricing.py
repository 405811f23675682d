import tempfile
from pathlib import Path

import polars as pl
from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.pricing import naive
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.pricing.identities.random_ledger import BOOK, ledgers
from tests.pricing.recorded import Made


def agree(root: Path, book: PriceBook) -> None:
    ours, theirs = charges.price(Ledger(root), book), naive.price(root, book.text)
    assert naive.differences(naive.of_charges(ours.frame), naive.of_naive(theirs)) == []
    assert ours.total_nano == theirs["cost_nano"].sum()


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])
@given(made=ledgers(portions=1, moving=False))
def test_the_analyst_s_allocation_is_the_charges_of_any_ledger(made: Made) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder) / "ledger")
        agree(Path(folder) / "ledger", pricebook.parse(BOOK, "awkward.toml"))


def test_a_row_that_differs_is_named() -> None:
    key = {"run_id": "r", "hour": 1, "device_id": "d", "lease_id": "", "kind": "capacity", "bucket": "idle"}
    rest = {"policy_version": -1, "task": "", "fate": "", "cause": "", "route": "", **dict.fromkeys(naive.AMOUNTS, 0)}
    one = pl.DataFrame([{**key, **rest, "ns": 5}])
    assert naive.differences(one, one) == []
    other = pl.DataFrame([{**key, **rest, "ns": 5, "cost_nano": 1}])
    assert "'cost_nano': 0" in naive.differences(one, other)[0]
    assert "'idle'" in naive.differences(one, one.clear())[1]
