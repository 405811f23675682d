from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.audit.check import check
from rose.pricing.closing import coverage, store, tables
from rose.pricing.closing.bill import bill
from rose.pricing.closing.period import Period, of_month
from rose.pricing.closing.records import postings
from rose.pricing.closing.restate import restate
from rose.pricing.closing.statement import state
from rose.pricing.money import PricingError
from rose.pricing.table import Table
from tests.pricing.closing.conftest import BOOK, DAY_NS, DEARER, HOUR_NS, T0_NS, charges_of, close

WEEK = Period(T0_NS, T0_NS + 7 * DAY_NS)
WEEK_ID, JUNE_ID = "2026-06-01-to-2026-06-08-live-1", "2026-06-live-1"
JUNE = of_month("2026-06")
#: After the end of June, and then a second later each time.
JULY_US = JUNE.to_ns // 1000 + 10**6
DAY_NANO = 24 * 3_600_000_000


def test_a_month_is_closed_although_a_week_of_it_is(weeks: Path) -> None:
    close(weeks, WEEK, now_us=JULY_US)
    # Priced anew with the month: 10% more.
    month = close(weeks, JUNE, DEARER, now_us=JULY_US + 10**6)
    (part,) = month.posted[0].covers
    assert (part.close_id, part.correction, part.from_ns, part.to_ns) == (WEEK_ID, 0, WEEK.from_ns, WEEK.to_ns)
    assert (part.before_nano, part.cost_nano) == (7 * DAY_NANO, 7 * DAY_NANO * 11 // 10)
    assert month.charges.total_nano == 20 * DAY_NANO * 11 // 10

    whole = bill(weeks, JUNE, BOOK)
    assert (whole.closes, whole.frame["cost_nano"].sum()) == ((JUNE_ID,), month.charges.total_nano)
    assert bill(weeks, WEEK, BOOK).frame["cost_nano"].sum() == part.cost_nano
    assert store.read(weeks, WEEK_ID).charges.total_nano == 7 * DAY_NANO, "what was closed stays"
    assert not check(weeks).problems
    parts = list(tables.statement(state(month)))
    (shown,) = [table for table in parts if isinstance(table, Table) and "Closed before" in table.title]
    assert shown.rows[0][:2] == (WEEK_ID, "0")


def test_what_was_closed_again_is_corrected_where_it_counts(weeks: Path) -> None:
    close(weeks, WEEK, now_us=JULY_US)
    assert restate(weeks, WEEK_ID, "contract 18", DEARER, now_us=JULY_US + 1)
    month = close(weeks, JUNE, BOOK, now_us=JULY_US + 10**6)
    (part,) = month.posted[0].covers
    assert (part.correction, part.before_nano, part.cost_nano) == (1, 7 * DAY_NANO * 11 // 10, 7 * DAY_NANO)
    says = rf"every hour of {WEEK_ID} was closed again in {JUNE_ID}.*restate {JUNE_ID}"
    with pytest.raises(PricingError, match=says):
        restate(weeks, WEEK_ID, "again", DEARER, now_us=JULY_US + 2 * 10**6)
    for inside in (WEEK, JUNE, Period(T0_NS, T0_NS + HOUR_NS)):
        with pytest.raises(PricingError, match=rf"lies in ({WEEK_ID}|{JUNE_ID}), which is closed"):
            close(weeks, inside, now_us=JULY_US + 3 * 10**6)
    assert restate(weeks, JUNE_ID, "contract 18", DEARER, now_us=JULY_US + 4 * 10**6)
    assert bill(weeks, JUNE, BOOK).frame["cost_nano"].sum() == 20 * DAY_NANO * 11 // 10
    assert not check(weeks).problems


def test_a_week_across_two_months_counts_in_each_until_that_is_closed(weeks: Path) -> None:
    """Of the hours of an earlier close each is taken over by the first later one that has it."""
    across = Period(T0_NS + 4 * DAY_NS, T0_NS + 12 * DAY_NS)
    first, second = Period(T0_NS, T0_NS + 8 * DAY_NS), Period(T0_NS + 8 * DAY_NS, T0_NS + 20 * DAY_NS)
    at_us = JULY_US
    for period in (across, first):
        at_us += 10**6
        close(weeks, period, now_us=at_us)
    both = bill(weeks, JUNE, BOOK)
    assert (len(both.closes), both.frame["cost_nano"].sum()) == (2, 20 * DAY_NANO)
    assert coverage.counting(postings(weeks), "live") == {
        f"{across.label}-live-1": [Period(first.to_ns, across.to_ns)],
        f"{first.label}-live-1": [first],
    }
    close(weeks, second, now_us=at_us + 10**6)
    assert bill(weeks, JUNE, BOOK).closes == (f"{first.label}-live-1", f"{second.label}-live-1")
    assert not check(weeks).problems


hours = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(
    lambda span: Period(T0_NS + span[0] * HOUR_NS, T0_NS + sum(span) * HOUR_NS)
)


@given(st.lists(hours, max_size=8))
def test_every_closed_hour_counts_once_in_the_close_made_last(periods: list[Period]) -> None:
    posted: Any = {str(n): [SimpleNamespace(provenance="live", period=period)] for n, period in enumerate(periods)}
    counted = coverage.counting(posted, "live")
    for hour in range(61):
        at_ns = T0_NS + hour * HOUR_NS
        having = [name for name, (first,) in posted.items() if first.period.from_ns <= at_ns < first.period.to_ns]
        counting = [name for name, parts in counted.items() if any(p.from_ns <= at_ns < p.to_ns for p in parts)]
        assert counting == having[-1:]
    assert coverage.counting(posted, "replay") == {}


def test_charges_within_a_period() -> None:
    frame = charges_of({"hour": datetime(2026, 6, day)} for day in range(1, 5))
    hours = coverage.within(frame, Period(T0_NS + DAY_NS, T0_NS + 3 * DAY_NS))["hour"]
    assert list(hours) == [datetime(2026, 6, 2), datetime(2026, 6, 3)]
