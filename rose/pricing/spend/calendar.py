"""Periods and times in the reader's time zone, whose offset from UTC must be whole hours."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from rose.pricing.money import NS_PER_HOUR, QuestionError
from rose.pricing.period import NS_PER_DAY, Period, moment, nanoseconds

FORMS = (
    "7d (the last 7 whole days), today, yesterday, last-week, this-month, last-month, last-quarter, last-year, 2026, "
    "2026-10, 2026-Q4, 2026-W45, 2026-10-03, 2026-10-03T05, or FROM..TO of two of these"
)

_LAST_DAYS = re.compile(r"([1-9]\d{0,3})d")
_WEEK = re.compile(r"(\d{4})-W(\d\d)")
_MONTHS = re.compile(r"(\d{4})(?:-(\d\d)|-Q([1-4]))?")
_NAMED = re.compile(r"(this|last)-(week|month|quarter|year)")
_DAYS_MAX = 3660  # Ten years: each hour takes memory.


@dataclass(frozen=True)
class Calendar:
    """A time zone with its IANA name. Raises QuestionError for an unknown name."""

    tz: str = "UTC"

    def __post_init__(self) -> None:
        try:
            _ = self.zone
        except (ValueError, LookupError, OSError):
            raise QuestionError(
                f"time zone {self.tz!r} is not known; give an IANA name such as Europe/Berlin"
            ) from None

    @cached_property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.tz)

    def period(self, text: str, now_ns: int) -> Period:
        """Return the period that `text` describes (see FORMS). Raises QuestionError, also if it is above ten years."""
        first, dots, last = text.partition("..")
        begin, end = self._bounds(first, now_ns)[0], self._bounds(last if dots else first, now_ns)[1]
        if end - begin > _DAYS_MAX * NS_PER_DAY:
            raise QuestionError(f"period {text!r} is longer than {_DAYS_MAX} days; ask for a part of it")
        if end <= begin:
            raise QuestionError(f"period {text!r} ends before it begins; write the earlier part first")
        return Period(begin, end)

    def text(self, period: Period) -> str:
        """Return a period as text in this zone: its first and last day if it has whole days, or else begin and end."""
        ends = (period.from_ns, period.to_ns, period.to_ns - 1)
        begin, end, last = (moment(ns).astimezone(self.zone) for ns in ends)
        if begin.time() == end.time() == time():
            return f"{' through '.join(dict.fromkeys((f'{begin:%Y-%m-%d}', f'{last:%Y-%m-%d}')))}, {self.tz}"
        return f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, {self.tz}"

    def hours(self, period: Period) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yield the start of each hour in UTC nanoseconds, with the names of its day, week, month, quarter and year."""
        at_ns = period.from_ns
        while at_ns < period.to_ns:
            day = moment(at_ns).astimezone(self.zone).date()
            end_ns = min(self._begin(day + timedelta(days=1)), period.to_ns)
            names = {"day": day.isoformat(), "week": f"{day:%G-W%V}", "month": f"{day:%Y-%m}", "year": f"{day.year}"}
            names["quarter"] = f"{day.year}-Q{(day.month + 2) // 3}"
            yield from ((ns, names) for ns in range(at_ns, end_ns, NS_PER_HOUR))
            at_ns = end_ns

    def _bounds(self, text: str, now_ns: int) -> tuple[int, int]:
        try:
            days = self._days(text, moment(now_ns).astimezone(self.zone).date())
            if days is not None:
                return self._begin(days[0]), self._begin(days[1])
            at = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            raise QuestionError(f"{text!r} is not a period; write {FORMS}") from None
        if len(text) != len("2026-10-03T05"):
            raise QuestionError(f"{text!r} is not a period; write {FORMS}")
        begin = self._whole_hour(at.replace(tzinfo=self.zone), text)
        return begin, begin + NS_PER_HOUR

    def _begin(self, day: date) -> int:
        return self._whole_hour(datetime.combine(day, time(), self.zone), day.isoformat())

    def _whole_hour(self, at: datetime, text: str) -> int:
        ns = nanoseconds(at.astimezone(UTC))
        if ns % NS_PER_HOUR:
            hours = (at.utcoffset() or timedelta()) // timedelta(hours=1)
            # The signs of these zones are those of POSIX: Etc/GMT-5 is UTC+05:00.
            raise QuestionError(
                f"{text} in {self.tz} begins at {at.astimezone(UTC):%H:%M} UTC, and charges are of whole UTC hours. "
                f"Give a tz of whole hours, such as Etc/GMT{-hours:+d} (UTC{hours:+d}) or Etc/GMT{-hours - 1:+d} "
                f"(UTC{hours + 1:+d})"
            )
        return ns

    def _days(self, text: str, today: date) -> tuple[date, date] | None:
        if match := _LAST_DAYS.fullmatch(text):
            return today - timedelta(days=int(match[1])), today
        if text in ("today", "yesterday"):
            first = today - timedelta(days=text == "yesterday")
            return first, first + timedelta(days=1)
        if match := _NAMED.fullmatch(text):
            return self._named(match[2], today, back=match[1] == "last")
        if match := _WEEK.fullmatch(text):
            monday = date.fromisocalendar(int(match[1]), int(match[2]), 1)
            return monday, monday + timedelta(days=7)
        if match := _MONTHS.fullmatch(text):
            year, month, quarter = match.groups()
            begin = int(month) if month else 3 * int(quarter or 1) - 2
            return _months(date(int(year), begin, 1), 1 if month else 3 if quarter else 12)
        if len(text) == len("2026-10-03"):
            first = date.fromisoformat(text)
            return first, first + timedelta(days=1)
        return None

    def _named(self, what: str, today: date, *, back: bool) -> tuple[date, date]:
        if what == "week":
            monday = today - timedelta(days=today.weekday() + 7 * back)
            return monday, monday + timedelta(days=7)
        count = {"month": 1, "quarter": 3, "year": 12}[what]
        into = (today.month - 1) % count
        return _months(_add(today.replace(day=1), -into - count * back), count)


def _months(first: date, count: int) -> tuple[date, date]:
    return first, _add(first, count)


def _add(first: date, months: int) -> date:
    number = first.year * 12 + first.month - 1 + months
    return date(number // 12, number % 12 + 1, 1)
