from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rose.ledger import catalog
from rose.pricing.borrowing import scale_down
from rose.pricing.borrowing.cash import Bought
from rose.pricing.borrowing.report import alternatives as compare
from rose.pricing.borrowing.report.savings import Savings
from rose.pricing.commands.borrow import borrow_app
from rose.pricing.money import NS_PER_HOUR, NS_PER_S

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
        needed_ns=Fraction(needed_ns), idle_ns=idle_ns, usd_per_device_hour=Fraction(2),
        increment_hours=Decimal(hours),
    )  # fmt: skip
    assert bought.increment_ns is not None
    assert bought.bought_ns >= bought.beyond_ns
    assert bought.bought_ns == 0 or bought.bought_ns - bought.increment_ns < bought.beyond_ns
    assert replace(bought, idle_ns=idle_ns + NS_PER_S).usd <= bought.usd


def test_draws_buy_whole_devices_too() -> None:
    bought = replace(LIVE, idle_ns=0, needed_ns=Fraction(NS_PER_HOUR), increment_hours=Decimal(1))
    assert list(bought.draws(np.array([0.0, 0.5, 1.0, 1.3]))) == [0, 2, 2, 4]


def test_recorded_decisions_are_charged_and_saved(sample: Path, tmp_path: Path) -> None:
    """A serving device was kept for a lease, and a dedicated one let go for the hour and half an hour more."""
    file = tmp_path / "decisions.csv"
    file.write_text(
        ",".join(scale_down.DECISION_COLUMNS) + "\n"
        "s0,h100-sxm,kept,2026-06-01T00:10:00Z,2026-06-01T00:15:00Z,autoscaler,\n"
        "r1,h100-sxm,let_go,2026-05-31T23:30:00Z,2026-06-01T01:00:00Z,Kim,serving lends enough\n"
        # It is in the fleet all the same.
        "r0,h100-sxm,let_go,2026-06-01T00:00:00Z,2026-06-01T01:00:00Z,Kim,by mistake\n"
    )
    before = priced_savings(sample)
    for _ in range(2):
        done = CliRunner().invoke(borrow_app, ["decide", str(file), "--ledger", str(sample)])
        assert done.exit_code == 0, done.output
    with closing(catalog.connect(sample)) as connection:
        assert connection.execute("SELECT count(*) FROM scale_down").fetchall() == [(3,)]
    after = priced_savings(sample)
    hour, kept = 2_350_000_000, 2_350_000_000 * 300 / 3600
    assert (after.added.value or 0) - (before.added.value or 0) == pytest.approx(kept, abs=1)
    assert (after.cash_saved.value or 0) - (before.cash_saved.value or 0) == pytest.approx(hour - kept, abs=1)
    assert after.capacity_avoided.value == before.capacity_avoided.value
    assert "$2.35 of dedicated devices that recorded decisions let go" in after.rests_on["cash_saved"]
    assert "no recorded decision let a dedicated device go" in before.rests_on["cash_saved"]


def priced_savings(root: Path) -> Savings:
    return compare.build(root, "run").savings
