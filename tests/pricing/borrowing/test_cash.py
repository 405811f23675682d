from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks import price_book
from rose import events
from rose.ledger import catalog
from rose.pricing.borrowing import scale_down
from rose.pricing.borrowing.cash import Bought, let_go_usd
from rose.pricing.borrowing.report import alternatives as compare
from rose.pricing.borrowing.report.savings import Savings
from rose.pricing.charges.allocation import ALL_BUCKETS, TIME_BUCKETS, Allocation, DeviceCost
from rose.pricing.commands.borrow import borrow_app
from rose.pricing.money import NS_PER_HOUR, NS_PER_S
from rose.pricing.price_books.pricebook import PriceBook, parse
from tests.pricing.charges.test_tenures import device
from tests.pricing.conftest import T0_NS

#: 37 s of a dedicated device were needed, which sat idle for 76 s.
LIVE = Bought(needed_ns=Fraction(37 * NS_PER_S), idle_ns=76 * NS_PER_S, usd_per_device_hour=Fraction(2))


def test_what_an_idle_device_would_have_made_for_nothing_is_on_no_bill() -> None:
    assert (LIVE.beyond_ns, LIVE.bought_ns, LIVE.usd) == (0, 0, 0)
    assert replace(LIVE, increment_hours=Decimal(1)).usd == 0


def test_where_the_book_says_so_what_exceeds_idle_time_buys_whole_devices_for_an_hour() -> None:
    hourly = replace(LIVE, increment_hours=Decimal(1))
    beyond = replace(hourly, idle_ns=36 * NS_PER_S)
    assert (beyond.beyond_ns, beyond.bought_ns, beyond.usd) == (NS_PER_S, NS_PER_HOUR, 2)
    assert replace(hourly, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR)).usd == 2
    assert replace(hourly, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR + 1)).usd == 4


def test_where_devices_are_bought_by_the_time_used_what_exceeds_idle_time_is_bought() -> None:
    beyond = replace(LIVE, idle_ns=36 * NS_PER_S)
    assert (beyond.bought_ns, beyond.usd) == (NS_PER_S, Fraction(2, 3600))
    assert list(replace(LIVE, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR)).draws(np.array([0.5, 1.0]))) == [1, 2]


@pytest.mark.parametrize(("hours", "units", "usd"), [("0.01", 2, "0.04"), ("1", 1, "2"), ("8760", 1, "17520")])
def test_the_book_says_the_least_that_can_be_bought(hours: str, units: int, usd: str) -> None:
    bought = replace(LIVE, idle_ns=0, needed_ns=Fraction(60 * NS_PER_S), increment_hours=Decimal(hours))
    assert bought.bought_ns == units * Fraction(hours) * NS_PER_HOUR
    assert bought.usd == Fraction(usd)


times = st.integers(0, 1000 * NS_PER_HOUR)


@given(times, times, st.sampled_from(["0.25", "1", "24"]))
def test_purchases_cover_what_is_needed_and_none_is_one_too_many(needed_ns: int, idle_ns: int, hours: str) -> None:
    bought = Bought(
        needed_ns=Fraction(needed_ns),
        idle_ns=idle_ns,
        usd_per_device_hour=Fraction(2),
        increment_hours=Decimal(hours),
    )
    assert bought.increment_ns is not None
    assert bought.bought_ns >= bought.beyond_ns
    assert bought.bought_ns == 0 or bought.bought_ns - bought.increment_ns < bought.beyond_ns
    assert replace(bought, idle_ns=idle_ns + NS_PER_S).usd <= bought.usd


def test_draws_buy_whole_devices_too() -> None:
    bought = replace(LIVE, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR), increment_hours=Decimal(1))
    assert list(bought.draws(np.array([0.0, 0.5, 1.0, 1.3]))) == [0, 2, 2, 4]


def test_recorded_decisions_are_charged_and_saved(write_ledger: Any, sample: Path, tmp_path: Path) -> None:
    """A serving device was kept for a lease, and a dedicated one let go for the hour and half an hour more."""
    file = tmp_path / "decisions.csv"
    file.write_text(
        ",".join(scale_down.DECISION_COLUMNS) + "\n"
        "s0,h100-sxm,kept,2026-06-01T00:10:00Z,2026-06-01T00:15:00Z,autoscaler,\n"
        "r1,h100-sxm,let_go,2026-05-31T23:30:00Z,2026-06-01T01:00:00Z,Kim,serving lends enough\n"
        # It is in the fleet all the same.
        "r0,h100-sxm,let_go,2026-06-01T00:00:00Z,2026-06-01T01:00:00Z,Kim,by mistake\n"
        # It never was.
        "r9,h100-sxm,let_go,2026-06-01T00:00:00Z,2026-06-01T01:00:00Z,Kim,\n"
    )
    made = [device("joined", -7200, "r1", pool="rollout"), device("left", -3600, "r1", pool="rollout")]
    write_ledger(made, root=sample, run_id="earlier")
    before = priced_savings(sample)
    for _ in range(2):
        done = CliRunner().invoke(borrow_app, ["decide", str(file), "--ledger", str(sample)])
        assert done.exit_code == 0, done.output
    with closing(catalog.connect(sample)) as connection:
        assert connection.execute("SELECT count(*) FROM scale_down").fetchall() == [(4,)]
    after = priced_savings(sample)
    hour, kept = 2_350_000_000, 2_350_000_000 * 300 / 3600
    assert (after.added.value or 0) - (before.added.value or 0) == pytest.approx(kept, abs=1)
    assert (after.cash_saved.value or 0) - (before.cash_saved.value or 0) == pytest.approx(hour - kept, abs=1)
    assert after.capacity_avoided.value == before.capacity_avoided.value
    assert "$2.35 of dedicated devices that recorded decisions let go" in after.rests_on["cash_saved"]
    assert "no recorded decision of the run let a dedicated device go" in before.rests_on["cash_saved"]


def test_a_device_that_was_let_go_saves_the_price_of_its_own_class(write_ledger: Any, sample: Path) -> None:
    before = priced_savings(sample)
    presence = [device("joined", -7200, "r1", pool="rollout"), device("left", -3600, "r1", pool="rollout")]
    write_ledger(presence, root=sample, run_id="earlier")
    dearer = events.ScaleDown(
        device_id="r1", device_class="h200", decision="let_go", t0_ns=T0_NS, t1_ns=at_ns(1), decided_by="Kim"
    )
    write_ledger([dearer], root=sample, writer="kim")
    assert priced_savings(sample).cash_saved.value == before.cash_saved.value


def priced_savings(root: Path) -> Savings:
    return compare.build(root, "run")


DAY = 24
#: $2 an hour, from the second day $3.
PRICES = price_book.toml(
    "b",
    price_book.device("h100-sxm", "2", valid_to=date(2026, 6, 2)),
    price_book.device("h100-sxm", "3", valid_from=date(2026, 6, 2)),
    price_book.electricity("0.1"),
    price_book.LENDING,
    price_book.TOKENS,
)
RISING = parse(PRICES, "b.toml")
HOURLY = parse(PRICES.replace("commitment", "bought_in_hours = 1\ncommitment"), "b.toml")


def fleet(*stays_h: tuple[float, float]) -> Allocation:
    """Two days of r0, and of r1 what is given."""
    stays = {"r0": ((0.0, 2.0 * DAY),), "r1": stays_h}
    return Allocation(
        devices=tuple(
            DeviceCost(
                fleet_run_id="run",
                device_id=device_id,
                pool="rollout",
                device_class="h100-sxm",
                t0_ns=spans[0][0],
                t1_ns=spans[-1][1],
                bucket_ns=dict.fromkeys(TIME_BUCKETS, 0),
                amortized_nano_usd=dict.fromkeys(ALL_BUCKETS, 0),
                fully_loaded_nano_usd={},
                stays_ns=spans,
            )
            for device_id, hours in stays.items()
            if (spans := tuple((at_ns(t0_h), at_ns(t1_h)) for t0_h, t1_h in hours))
        )
    )


def at_ns(hours: float) -> int:
    return T0_NS + int(hours * NS_PER_HOUR)


def let_go(t0_h: float, t1_h: float, device_class: str = "h100-sxm") -> dict[str, Any]:
    times = {"t0_ns": at_ns(t0_h), "t1_ns": at_ns(t1_h)}
    return {"device_id": "r1", "decision": "let_go", "device_class": device_class} | times


def test_time_that_several_decisions_let_go_counts_once() -> None:
    rows = [let_go(0, 2), let_go(1, 3), let_go(0.5, 1.5), let_go(2, 2.5), let_go(3, 4)]
    assert let_go_usd(rows, fleet(), RISING) == 8
    assert let_go_usd(rows, fleet(), HOURLY) == 8


@pytest.mark.parametrize("book", [RISING, HOURLY])
def test_time_away_is_priced_at_what_it_cost_then(book: PriceBook) -> None:
    assert let_go_usd([let_go(-5, 100)], fleet(), book) == 24 * 2 + 24 * 3


def test_a_device_that_came_back_was_away_until_then() -> None:
    rows = [let_go(1, 3)]
    assert let_go_usd(rows, fleet((0, 1), (3, 4)), RISING) == 4
    assert let_go_usd(rows, fleet((0, 1.5), (2, 2.25), (2.5, 4)), RISING) == Fraction(3, 2)
    # Neither absence is an hour, which is the least that can be bought.
    assert let_go_usd(rows, fleet((0, 1.5), (2, 2.25), (2.5, 4)), HOURLY) == 0
