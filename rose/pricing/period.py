"""Periods of whole UTC hours, and points in time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from rose.pricing.money import NS_PER_HOUR, PricingError, QuestionError

NS_PER_DAY = 24 * NS_PER_HOUR
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH = re.compile(r"(\d{4})-(\d\d)")


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """A period [from_ns, to_ns) of whole UTC hours. Raises PricingError if it is empty or not of whole hours."""

    from_ns: int
    to_ns: int

    def __post_init__(self) -> None:
        if self.from_ns % NS_PER_HOUR or self.to_ns % NS_PER_HOUR:
            raise PricingError(f"a period must consist of whole UTC hours, and {self.label} does not")
        if self.to_ns <= self.from_ns:
            raise PricingError(f"a period must end after it begins, and {self.label} does not; check both ends")

    @property
    def label(self) -> str:
        begin, end = moment(self.from_ns), moment(self.to_ns)
        if self.from_ns % NS_PER_DAY == 0 and begin.day == 1 and end == _next_month(begin):
            return f"{begin:%Y-%m}"
        if self.from_ns % NS_PER_DAY == 0 and self.to_ns == self.from_ns + NS_PER_DAY:
            return f"{begin:%Y-%m-%d}"
        if self.to_ns == self.from_ns + NS_PER_HOUR:
            return f"{begin:%Y-%m-%dT%H}"
        return f"{hour_text(self.from_ns)}-to-{hour_text(self.to_ns)}"

    def overlaps(self, other: Period) -> bool:
        return self.from_ns < other.to_ns and other.from_ns < self.to_ns

    def within(self, other: Period) -> Period:
        return Period(max(self.from_ns, other.from_ns), min(self.to_ns, other.to_ns))


def of_month(text: str) -> Period:
    match = _MONTH.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 12:
        raise QuestionError(f"{text!r} is not a month; write it as 2026-11")
    begin = datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)
    return Period(nanoseconds(begin), nanoseconds(_next_month(begin)))


def month_at(ns: int) -> Period:
    return of_month(f"{moment(ns):%Y-%m}")


def period_before(period: Period) -> Period:
    if period == month_at(period.from_ns):
        return month_at(period.from_ns - 1)
    return Period(2 * period.from_ns - period.to_ns, period.from_ns)


def hour(text: str, option: str) -> int:
    """Return an hour such as `2026-11-01T05` in UTC nanoseconds. Raises QuestionError, which names `option`."""
    at_ns = instant(text, option)
    if at_ns % NS_PER_HOUR or len(text) <= len("2026-11-01"):
        raise QuestionError(f"{option} {text!r} is not an hour; write an hour such as 2026-11-01T05")
    return at_ns


def instant(text: str, option: str) -> int:
    """Return a time such as `2026-12-05T10:00Z` or `2026-12-05` in UTC nanoseconds. Raises QuestionError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise QuestionError(
            f"{option} {text!r} is not a UTC time; write it as 2026-11-01, 2026-11-01T05 or 2026-11-01T05:30Z"
        ) from None
    return nanoseconds(at if at.tzinfo else at.replace(tzinfo=UTC))


def nanoseconds(at: datetime) -> int:
    """Return nanoseconds since the Unix epoch. A time without a zone is UTC."""
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1) * 1000


def moment(ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ns // 1000)


def naive(ns: int) -> datetime:
    return moment(ns).replace(tzinfo=None)


def hour_text(ns: int) -> str:
    """Return an hour such as `2026-11-01T05`, or `2026-11-01` for midnight."""
    at = moment(ns)
    return f"{at:%Y-%m-%d}" if at.hour == 0 else f"{at:%Y-%m-%dT%H}"


def day_of(ns: int) -> date:
    return moment(ns).date()


def of_hours(first_ns: int, last_ns: int) -> Period:
    return Period(first_ns, last_ns + NS_PER_HOUR)


def of_day(day: date) -> Period:
    begin_ns = nanoseconds(datetime(day.year, day.month, day.day, tzinfo=UTC))
    return Period(begin_ns, begin_ns + NS_PER_DAY)


def without(span_ns: tuple[int, int], taken_ns: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of the span [from, to) that no span in `taken_ns` covers."""
    at_ns, end_ns = span_ns
    for from_ns, to_ns in sorted([*taken_ns, (end_ns, end_ns)]):
        if at_ns < min(from_ns, end_ns):
            yield at_ns, min(from_ns, end_ns)
        at_ns = max(at_ns, to_ns)


def _next_month(begin: datetime) -> datetime:
    return begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
