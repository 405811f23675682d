from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from rose.pricing.closing import period
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.period import Period
from rose.pricing.figures import BookFacts
from rose.pricing.watch import anomaly, budget, tables
from tests.pricing.closing.conftest import BOOK, DAY_NS, NEXT_DAY_US, T0_NS, charges_of
from tests.pricing.conftest import printed


def test_forecasts_are_shown_with_the_fleet_first(fleet: Path) -> None:
    june = period.of_month("2026-06")
    text = printed(tables.forecasts(budget.expected(fleet, june, BOOK, now_us=NEXT_DAY_US)))
    assert "What 2026-06 will have cost [amortized; USD, live] team spent forecast 95% interval" in text
    assert "the fleet $3.87 - - chat $2.77 - - research $1.10 - -" in text
    assert "not enough days: 1 of 28 are known, each from midnight to midnight UTC" in text


def test_budgets_are_shown_with_their_method(fleet: Path) -> None:
    june = period.of_month("2026-06")
    for team, usd in (("chat", "1"), ("nobody", "5")):
        budget.set_budget(fleet, team, usd, june)
    text = printed(tables.budgets(budget.show(fleet, june, BOOK, now_us=NEXT_DAY_US)))
    assert "Budgets of 2026-06 [amortized; USD, live]" in text
    assert "chat $1.00 $2.77 $0.00 -$1.77 - -" in text
    assert "not enough days: 1 of 28 are known, each from midnight to midnight UTC; no charge at all: nobody" in text


def test_days_that_stand_out_are_shown_with_their_change() -> None:
    whole = Period(T0_NS, T0_NS + 9 * DAY_NS)
    rows = [
        {"hour": datetime(2026, 6, 1) + timedelta(days=n), "ns": 10**12 * hours, "cost_nano": 10**9 * hours}
        for n, hours in enumerate([10] * 8 + [25])
    ]
    frame = charges_of(rows).with_columns(closed=pl.lit(False))
    whole_bill = Bill(
        frame=frame, period=whole, provenance="live", book=BookFacts.from_book(BOOK), verified=True, closes=()
    )
    text = printed(tables.watch(anomaly.watch(whole_bill, whole)))
    assert "2 days judged (USD, live): a day stands out if" in text
    assert "not enough data for 7 days (2026-06-01 to 2026-06-07)" in text
    assert "Days that stand out [amortized; USD, live]" in text
    assert "2026-06-09 cost $25.00 $10.00 on 2026-06-08 +$15.00 150.0" in text
    assert "`rose changes --period 2026-06-09 --before 2026-06-08` says what drove the last one" in text
    alike = anomaly.watch(whole_bill, Period(T0_NS + 7 * DAY_NS, T0_NS + 8 * DAY_NS))
    assert "No day stands out." in printed(tables.watch(alike))
