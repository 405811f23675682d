import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.money import NS_PER_HOUR, PricingError
from rose.pricing.period import Period, nanoseconds
from rose.pricing.spend.calendar import Calendar

#: A Monday.
NOW_NS = nanoseconds(datetime(2026, 11, 23, 10, 30, tzinfo=UTC))
BERLIN = Calendar("Europe/Berlin")


def bounds(text: str, calendar: Calendar | None = None) -> tuple[str, str]:
    made = (calendar or Calendar()).period(text, NOW_NS)
    begin, end = (datetime.fromtimestamp(ns // 10**9, UTC) for ns in (made.from_ns, made.to_ns))
    return f"{begin:%Y-%m-%dT%H}", f"{end:%Y-%m-%dT%H}"


@pytest.mark.parametrize(
    ("text", "first", "after"),
    [
        ("7d", "2026-11-16", "2026-11-23"),
        ("today", "2026-11-23", "2026-11-24"),
        ("yesterday", "2026-11-22", "2026-11-23"),
        ("this-week", "2026-11-23", "2026-11-30"),
        ("last-week", "2026-11-16", "2026-11-23"),
        ("this-month", "2026-11-01", "2026-12-01"),
        ("last-month", "2026-10-01", "2026-11-01"),
        ("last-quarter", "2026-07-01", "2026-10-01"),
        ("last-year", "2025-01-01", "2026-01-01"),
        ("2026", "2026-01-01", "2027-01-01"),
        ("2026-12", "2026-12-01", "2027-01-01"),
        ("2026-Q4", "2026-10-01", "2027-01-01"),
        ("2026-W53", "2026-12-28", "2027-01-04"),
        ("2026-10-03", "2026-10-03", "2026-10-04"),
        ("this-quarter", "2026-10-01", "2027-01-01"),
        ("2026-09-30..2026-10", "2026-09-30", "2026-11-01"),
        ("2026-10-03T05", "2026-10-03T05", "2026-10-03T06"),
        ("2026-10-03T05..2026-10-03T07", "2026-10-03T05", "2026-10-03T08"),
    ],
)
def test_a_period_as_it_is_written(text: str, first: str, after: str) -> None:
    assert bounds(text) == tuple(when if "T" in when else f"{when}T00" for when in (first, after))


def test_days_are_those_of_the_reader_s_zone() -> None:
    assert bounds("2026-10", BERLIN) == ("2026-09-30T22", "2026-10-31T23")
    october = BERLIN.period("2026-10-25", NOW_NS)
    hours = list(BERLIN.hours(october))
    # Summer time ends: the day has an hour more.
    assert (len(hours), {names["day"] for _, names in hours}) == (25, {"2026-10-25"})
    assert BERLIN.text(october) == "2026-10-25, Europe/Berlin"
    two = BERLIN.period("2026-10-25..2026-10-26", NOW_NS)
    assert BERLIN.text(two) == "2026-10-25 through 2026-10-26, Europe/Berlin"
    assert Calendar().text(october) == "2026-10-24 22:00 to 2026-10-25 23:00, UTC"
    assert Calendar("Africa/Lagos").text(october) == "2026-10-24 23:00 to 2026-10-26 00:00, Africa/Lagos"


@pytest.mark.parametrize(
    ("text", "calendar", "says"),
    [
        ("FY2026", Calendar(), "'FY2026' is not a period"),
        ("someday", Calendar(), "'someday' is not a period; write 7d"),
        ("2026-13", Calendar(), "'2026-13' is not a period"),
        ("2026-W60", Calendar(), "'2026-W60' is not a period"),
        ("0d", Calendar(), "'0d' is not a period"),
        ("2026-10-03T05:30", Calendar(), "is not a period"),
        ("2026-10..2026-09", Calendar(), "ends before it begins"),
        ("2026-10", Calendar("Asia/Kolkata"), "2026-10-01 in Asia/Kolkata begins at 18:30 UTC"),
    ],
)
def test_what_is_no_period_is_refused(text: str, calendar: Calendar, says: str) -> None:
    with pytest.raises(PricingError, match=says):
        calendar.period(text, NOW_NS)


@pytest.mark.parametrize("tz", ["Asia/Kolkata", "Australia/Adelaide", "Asia/Kathmandu", "America/St_Johns"])
def test_the_zones_that_a_refusal_names_begin_their_days_within_the_hour(tz: str) -> None:
    with pytest.raises(PricingError, match="Give a tz of whole hours") as refused:
        Calendar(tz).period("2026-11", NOW_NS)
    midnight_ns = nanoseconds(datetime(2026, 11, 1, tzinfo=ZoneInfo(tz)).astimezone(UTC))
    named = re.findall(r"Etc/GMT[+-]\d+", str(refused.value))
    later, earlier = (Calendar(name).period("2026-11", NOW_NS).from_ns - midnight_ns for name in named)
    assert -NS_PER_HOUR < earlier < 0 < later < NS_PER_HOUR


def test_a_calendar_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(PricingError, match="time zone 'Mars/Base' is not known"):
        Calendar("Mars/Base")
    with pytest.raises(PricingError, match=r"time zone '\.\./etc' is not known"):
        Calendar("../etc")


@given(
    st.integers(0, 9000),
    st.integers(1, 200),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland"]),
)
def test_the_hours_of_a_period_are_all_of_it(first: int, count: int, tz: str) -> None:
    begin_ns = nanoseconds(datetime(2026, 1, 1, tzinfo=UTC)) + first * NS_PER_HOUR
    calendar, period = Calendar(tz), Period(begin_ns, begin_ns + count * NS_PER_HOUR)
    hours = list(calendar.hours(period))
    assert [from_ns for from_ns, _ in hours] == list(range(period.from_ns, period.to_ns, NS_PER_HOUR))
    for from_ns, names in hours:
        own = calendar.period(names["day"], begin_ns)
        assert own.from_ns <= from_ns < own.to_ns
        for name in ("week", "month", "quarter", "year"):
            wider = calendar.period(names[name], begin_ns)
            assert wider.from_ns <= own.from_ns < own.to_ns <= wider.to_ns
