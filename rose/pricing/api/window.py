"""The time that a request asks for: OpenCost's windows, and the periods of `rose cost`, in whole UTC hours."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rose.pricing.closing.period import NS_PER_DAY, Period, moment, nanoseconds
from rose.pricing.money import NS_PER_HOUR, NS_PER_S, PricingError
from rose.pricing.spend.calendar import Calendar, Hour

FORMS = (
    "today, yesterday, week, lastweek, month, lastmonth, 7d (the last 7 whole days), 24h (the last 24 whole hours), "
    "BEGIN,END as RFC 3339 or Unix times of whole hours, or a period of `rose cost` such as 2026-10 or 2026-W45"
)
#: Ten years: each hour of a window takes memory.
DAYS_MAX = 3660
#: OpenCost's words for periods that have others here.
_WORDS = {"week": "this-week", "month": "this-month", "lastweek": "last-week", "lastmonth": "last-month"}
_LAST_HOURS = re.compile(r"([1-9]\d{0,4})h")
_UNIX = re.compile(r"\d{1,11}")
#: By what a step is called, the part of `Hour` that names it.
_STEPS = {"1d": "day", "1w": "week", "24h": "day", "7d": "week"}
STEPS: tuple[str, ...] = ("day", "week", "month", "quarter", "year")


def period(text: str, calendar: Calendar, now_ns: int) -> Period:
    """The period that a window names. Raises PricingError for text that is no window, and for one that is too long."""
    named = _period(text, calendar, now_ns)
    if named.to_ns - named.from_ns > DAYS_MAX * NS_PER_DAY:
        raise PricingError(f"it is longer than {DAYS_MAX} days; ask for a part of it")
    return named


def _period(text: str, calendar: Calendar, now_ns: int) -> Period:
    if "," in text:
        begin, _, end = text.partition(",")
        return Period(_instant(begin), _instant(end))
    if match := _LAST_HOURS.fullmatch(text):
        end_ns = now_ns // NS_PER_HOUR * NS_PER_HOUR
        return Period(max(0, end_ns - int(match[1]) * NS_PER_HOUR), end_ns)
    try:
        return calendar.period(_WORDS.get(text, text), now_ns)
    except PricingError as error:
        if "is no period" not in str(error):
            raise
        raise PricingError(f"write {FORMS}") from None


def step(text: str) -> str:
    """One of STEPS. Raises ValueError for another text."""
    name = _STEPS.get(text, text)
    if name not in STEPS:
        raise ValueError(f"a step is 1d, 1w, {', '.join(STEPS)}")
    return name


def parts(whole: Period, calendar: Calendar, by: str) -> dict[str, Period]:
    """The days, weeks ... (one of STEPS) of a period in order, by name; the first and the last may be cut."""
    hours: dict[str, list[int]] = {}
    for hour in calendar.hours(whole):
        hours.setdefault(name(hour, by), []).append(hour.from_ns)
    return {label: Period(own[0], own[-1] + NS_PER_HOUR) for label, own in hours.items()}


def name(hour: Hour, by: str) -> str:
    """What the day, week ... of an hour is called."""
    return str(getattr(hour, by))


def rfc3339(ns: int) -> str:
    """`2026-06-01T00:00:00Z` of nanoseconds since the epoch, cut to seconds."""
    return f"{moment(ns):%Y-%m-%dT%H:%M:%SZ}"


def _instant(text: str) -> int:
    """Nanoseconds since the epoch of a whole hour. Raises PricingError."""
    if _UNIX.fullmatch(text):
        ns = int(text) * NS_PER_S
    else:
        try:
            at = datetime.fromisoformat(text)
            ns = nanoseconds(at if at.tzinfo else at.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            raise PricingError(
                f"{text!r} is no time; write RFC 3339 such as 2026-06-01T00:00:00Z, or Unix seconds"
            ) from None
    if ns % NS_PER_HOUR:
        raise PricingError(f"{text!r} is not a whole hour, and charges are of whole UTC hours")
    return ns
