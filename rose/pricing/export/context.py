"""What a bill is read beside: the period or the run before, budgets of its months, and its course by hour or day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from rose.ledger import catalog
from rose.pricing import charges
from rose.pricing.closing.bill import bill as bill_of
from rose.pricing.closing.period import NS_PER_DAY, Period, month_at
from rose.pricing.export.bill import Bill
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.watch.budget import budgets

#: A course has an hour to a column up to so many nanoseconds, then a day, then a week.
_HOURLY_NS, _DAILY_NS = 2 * NS_PER_DAY, 62 * NS_PER_DAY


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """What came before, nano-dollars by bucket and in all; None where it has no bill, and `why`."""

    name: str
    total_nano: int | None = None
    by_bucket: Mapping[str, int] | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamBudget:
    """A team's budget for a month, and what the whole month has cost it; None where the month cannot be priced."""

    team: str
    month: str
    budget_nano: int
    spent_nano: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One column of the course: its hour, day or week, nano-dollars, and whether it is of the time before."""

    label: str
    cost_nano: int
    before: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Everything that a bill is read beside. `months` are those that it lies in."""

    before: Before
    months: tuple[str, ...] = ()
    budgets: tuple[TeamBudget, ...] = ()
    course: tuple[Point, ...] = ()


def of_bill(bill: Bill) -> Context:
    """The context of a period or a close. Raises LedgerError; what cannot be priced is said, not raised."""
    root, time = bill.root, Period(bill.charges.from_ns, bill.charges.to_ns)
    earlier = _previous(time)
    allow, provenance, charged = not bill.stamp.verified, bill.stamp.provenance, pl.DataFrame()
    try:
        priced = bill_of(root, earlier, bill.book, provenance=provenance, allow_unverified=allow)
        charged, before = priced.frame, _before(f"the period before, {earlier.label}", priced.frame)
    except PricingError as error:
        before = Before(name=f"the period before, {earlier.label}", why=str(error))
    months = _months(time)
    return Context(
        before=before,
        months=tuple(month.label for month in months),
        budgets=tuple(
            budget
            for month in months
            for budget in _budgets(root, month, bill.book, provenance, allow_unverified=allow)
        ),
        course=_course(pl.concat([part.frame for part in bill.parts]), charged, time),
    )


def of_run(root: Path, run_id: str, book: PriceBook, *, provenance: str, allow_unverified: bool = False) -> Context:
    """The context of one run: the run that began before it, and its own course. Raises LedgerError, PricingError."""
    own = charges.price(root, book, run_id=run_id, provenance=provenance, allow_unverified=allow_unverified)
    with catalog.connect(root) as connection:
        set_variables(connection, run_id=run_id)
        earlier = [str(row["run_id"]) for row in rows(connection, "run/run_before")]
    name = f"the run before, {earlier[0]}" if earlier else "the run before"
    before = Before(name=name, why="no run of its provenance began earlier")
    if earlier:
        try:
            before = _before(
                name, charges.price(root, book, run_id=earlier[0], allow_unverified=allow_unverified).frame
            )
        except PricingError as error:
            before = Before(name=name, why=str(error))
    return Context(before=before, course=_course(own.frame, pl.DataFrame(), None))


def _before(name: str, frame: pl.DataFrame) -> Before:
    by_bucket = dict(frame.group_by("bucket").agg(pl.col("cost_nano").sum()).iter_rows())
    return Before(name=name, total_nano=sum(by_bucket.values()), by_bucket=by_bucket)


def _previous(time: Period) -> Period:
    """The month before a month, else as much time before as the period has."""
    month = month_at(time.from_ns)
    return month_at(time.from_ns - 1) if time == month else Period(2 * time.from_ns - time.to_ns, time.from_ns)


def _months(time: Period) -> list[Period]:
    months = [month_at(time.from_ns)]
    while months[-1].to_ns < time.to_ns:
        months.append(month_at(months[-1].to_ns))
    return months


def _budgets(
    root: Path, month: Period, book: PriceBook, provenance: str, *, allow_unverified: bool
) -> list[TeamBudget]:
    known = budgets(root, month)
    if not known:
        return []
    spent: Mapping[str, int] | None = None
    try:
        frame = bill_of(root, month, book, provenance=provenance, allow_unverified=allow_unverified).frame
        spent = dict(frame.group_by("team").agg(pl.col("cost_nano").sum()).iter_rows())
    except PricingError:
        # A part of the month that this bill does not show has no price: its budgets stand without what was spent.
        pass
    return [
        TeamBudget(
            team=team, month=month.label, budget_nano=nano, spent_nano=None if spent is None else spent.get(team, 0)
        )
        for team, nano in sorted(known.items())
    ]


def _course(frame: pl.DataFrame, earlier: pl.DataFrame, time: Period | None) -> tuple[Point, ...]:
    first, last = frame["hour"].min(), frame["hour"].max()
    span_ns = time.to_ns - time.from_ns if time else _span_ns(first, last)
    every, form = ("1h", "%Y-%m-%d %H:00") if span_ns <= _HOURLY_NS else ("1d", "%Y-%m-%d")
    if span_ns > _DAILY_NS:
        every, form = "1w", "week of %Y-%m-%d"
    points = []
    for part, is_before in ((earlier, True), (frame, False)):
        if part.is_empty():
            continue
        sums = part.group_by(pl.col("hour").dt.truncate(every)).agg(pl.col("cost_nano").sum()).sort("hour")
        points += [Point(label=f"{hour:{form}}", cost_nano=nano, before=is_before) for hour, nano in sums.iter_rows()]
    return tuple(points)


def _span_ns(first: object, last: object) -> int:
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    return (last - first) // timedelta(microseconds=1) * 1000
