import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.audit.evidence import DeviceHour, Evidence, gather
from rose.pricing.audit.steps import Step, Sum, capacity, energy, transfer
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from tests.pricing.closing.conftest import BOOK, BOOK_TOML, HOUR_NS, T0_NS, begun, ended, slice_, turn, write


@pytest.fixture(scope="module")
def hour(fleet_made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[pl.DataFrame, Evidence]:
    root = Path(shutil.copytree(fleet_made, tmp_path_factory.mktemp("hour") / "ledger"))
    frame = charges.price(Ledger(root), BOOK, Period(T0_NS, T0_NS + HOUR_NS)).frame
    return frame, gather(Ledger(root), DeviceHour(run_id="run", provenance="live", device_id="s0", hour_ns=T0_NS))


def links(kind: str, rows: pl.DataFrame, evidence: Evidence) -> Iterator[Step]:
    if kind == "energy":
        return energy(rows, BOOK, T0_NS, evidence, shared=False)
    if kind == "transfer":
        return transfer(rows, rows, BOOK, T0_NS, evidence)
    return capacity(rows, rows, BOOK, T0_NS, evidence, rows, None)


def wrong(steps: Iterator[Step]) -> list[str]:
    return [total.text for step in steps for total in step.sums if not total.ok]


def test_a_sum_says_what_it_comes_to() -> None:
    assert Sum("2 x 3", 6, 6).text == "2 x 3 = 6 nano-dollars"
    assert Sum("2 x 3", 7, 6, "ns").text == "2 x 3 comes to 6 ns, but 7 is charged"


@pytest.mark.parametrize("kind", ["capacity", "transfer", "energy"])
def test_each_kind_re_adds_and_a_nano_dollar_too_many_shows(hour: tuple[pl.DataFrame, Evidence], kind: str) -> None:
    frame, evidence = hour
    rows = frame.filter(pl.col("kind") == kind)
    assert wrong(links(kind, rows, evidence)) == []
    for place in range(rows.height):
        more = rows.with_row_index().with_columns(cost_nano=pl.col("cost_nano") + (pl.col("index") == place))
        assert wrong(links(kind, more.drop("index"), evidence))


@pytest.mark.parametrize(
    ("kind", "column", "says"),
    [
        ("capacity", "ns", "ns, but"),
        ("capacity", "tokens", "turns and preemptions"),
        ("transfer", "bytes", "route inter-region, version 3"),
        ("energy", "energy_mw_ns", "energy comes to"),
    ],
)
def test_what_the_events_do_not_say_shows(
    hour: tuple[pl.DataFrame, Evidence], kind: str, column: str, says: str
) -> None:
    frame, evidence = hour
    rows = frame.filter(pl.col("kind") == kind).with_columns(
        pl.when(pl.col(column) > 0).then(pl.col(column) + 1).otherwise(pl.col(column)).alias(column)
    )
    assert any(says in text for text in wrong(links(kind, rows, evidence)))


def test_tokens_that_cost_nothing_count_alike(fleet: Path, hour: tuple[pl.DataFrame, Evidence]) -> None:
    text = BOOK_TOML.replace("input_usd_per_million = 1", "input_usd_per_million = 0")
    free = pricebook.parse(text.replace("output_usd_per_million = 3", "output_usd_per_million = 0"), "free.toml")
    rows = charges.price(Ledger(fleet), free, Period(T0_NS, T0_NS + HOUR_NS)).frame.filter(kind="capacity")
    assert wrong(capacity(rows, rows, free, T0_NS, hour[1], rows, None)) == []


def test_a_row_without_amounts_is_not_missed(hour: tuple[pl.DataFrame, Evidence]) -> None:
    """Corrected books have no row for what was made again and cost nothing; its weight is there all the same."""
    frame, evidence = hour
    rows = frame.filter(pl.col("kind") == "capacity")
    without = rows.filter(pl.col("fate").ne_missing("recomputed"))
    assert any("recomputed" in text for text in wrong(links("capacity", without, evidence)))


def test_tokens_in_an_hour_without_device_time_cost_nothing(tmp_path: Path) -> None:
    made = [*begun(), slice_(0, rollout=3600), turn("t", 3700, 9, lease_id=None), *ended(3600)]
    root = write(tmp_path / "ledger", made)
    next_ns = T0_NS + HOUR_NS
    frame = charges.price(Ledger(root), BOOK).frame.filter(pl.col("tokens") > 0)
    device_hour = DeviceHour(run_id="run", provenance="live", device_id="s0", hour_ns=next_ns)
    steps = list(capacity(frame, frame, BOOK, next_ns, gather(Ledger(root), device_hour), frame, None))
    assert wrong(iter(steps)) == []
    assert "costs nothing" in steps[0].says
    assert "tokens of the hour's turns and preemptions = 9 tokens" in [total.text for total in steps[1].sums]
