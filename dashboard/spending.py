"""What the Overview reads: charges of a period and of the time before it, asked of pricing once, and added up by day.

Every amount is whole nano-dollars of one view, so the parts of a page sum to its whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import polars as pl

from dashboard import books, data
from dashboard import format as words
from dashboard.books import Asked
from dashboard.data import Priced
from dashboard.drill import AMOUNT
from dashboard.link import FULLY_LOADED, Link
from rose.pricing.answers import changes
from rose.pricing.answers.changes import Changes
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.period import NS_PER_DAY, Period, day_of, month_at, naive
from rose.pricing.figures import Stamp
from rose.pricing.spend import saved as spend_saved
from rose.pricing.spend.saved import Saved
from rose.pricing.watch import anomaly, budget
from rose.pricing.watch.anomaly import Watch

#: What rollouts cost amortized: their time, and what exists for them only. Fully loaded, all of the work `rollout`.
ROLLOUT_BUCKETS = ("rollout", "sync", "activation", "transfer")
#: Days before the period are asked for too, so that days that stand out need no second answer.
_DAYS_BEFORE_NS = anomaly.DAYS_BEFORE * NS_PER_DAY


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Charges of a period, chosen by team and tag.

    `summed`: the same by UTC `day`, `team`, `bucket`, `lent` and `rollout` (Boolean both), with sums `amount_nano` of
    the view and `ns` of device time. It is small and kept from one look at a page to the next; of charges there are up
    to a million, which are only gone through where a page lists them or groups them by something else.
    """

    period: Period
    charges: Callable[[], pl.DataFrame]
    summed: pl.DataFrame

    @classmethod
    def of(cls, charges: pl.DataFrame, period: Period) -> Rows:
        return cls(period=period, charges=lambda: charges, summed=_summed(charges))

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The charges, with `amount_nano` of the view, and `rollout` (Boolean)."""
        return self.charges()

    @cached_property
    def rollout(self) -> pl.DataFrame:
        """The charges that are for rollouts."""
        return self.frame.filter("rollout")

    @property
    def is_empty(self) -> bool:
        return self.summed.is_empty()

    @property
    def rollout_nano(self) -> int:
        return int(self.summed.filter("rollout")["amount_nano"].sum())

    @property
    def borrowed_share(self) -> Fraction | None:
        """Rollout time on lent serving devices over all of it; None where there was none."""
        time = self.summed.filter(bucket="rollout")
        whole = int(time["ns"].sum())
        return Fraction(int(time.filter("lent")["ns"].sum()), whole) if whole else None

    def by_day(self, *amounts: pl.Expr, teams: Collection[str] | None = None) -> pl.DataFrame:
        """Sums of `summed`, of all teams or of some, for each UTC day from the first to the last with a charge; 0 where
        a day between has none."""
        own = self.summed if teams is None else self.summed.filter(pl.col("team").is_in(list(teams)))
        summed = own.group_by("day").agg(*amounts).sort("day")
        if summed.is_empty():
            return summed
        days = pl.DataFrame({"day": pl.date_range(summed["day"][0], summed["day"][-1], eager=True)})
        return days.join(summed, "day", "left").fill_null(0).sort("day")

    def by_team(self) -> list[tuple[str, int, int]]:
        """Team, nano-dollars, and those of them for rollouts; the dearest first."""
        team = pl.col("team").fill_null("unallocated")
        summed = self.summed.group_by(team).agg(
            pl.col("amount_nano").sum(), pl.col("amount_nano").filter("rollout").sum().alias("rollout_nano")
        )
        return list(summed.sort("amount_nano", "team", descending=[True, False]).iter_rows())


BORROWED = (pl.col("pool") == "serving") & pl.col("lease_id").is_not_null()


def _summed(charges: pl.DataFrame) -> pl.DataFrame:
    day, lent = pl.col("hour").dt.date().alias("day"), BORROWED.fill_null(False).alias("lent")
    return charges.group_by(day, "team", "bucket", lent, "rollout").agg(
        pl.col("amount_nano").sum(), pl.col("ns").filter(kind="capacity").sum()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """The answer: the charges of the period, and of what it is compared with, or why there are none.

    `bill` is what pricing gave, with days before the period.
    """

    asked: Asked
    bill: Bill
    now: Rows
    before: Rows | None
    why_not: str
    #: What the charges of the period before rest on; None where there are none.
    before_stamp: Stamp | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Serving requests by UTC day, and those of them that kept their latency budgets: columns day, requests, kept."""

    days: pl.DataFrame

    @property
    def requests(self) -> int:
        return int(self.days["requests"].sum())

    @property
    def share(self) -> Fraction | None:
        return Fraction(int(self.days["kept"].sum()), self.requests) if self.requests else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Accepted answers by UTC day, those of them that an audit knows the truth of, and that are correct."""

    days: pl.DataFrame

    @property
    def accepted(self) -> int:
        return int(self.days["accepted"].sum())

    @property
    def audited(self) -> int:
        return int(self.days["audited"].sum())

    @property
    def correct_share(self) -> Fraction | None:
        """Of accepted answers, by the audit; None where nothing was audited."""
        return Fraction(int(self.days["correct"].sum()), self.audited) if self.audited else None

    def per_thousand(self, nano: int) -> Fraction | None:
        """Nano-dollars for 1,000 correct answers; for 1,000 accepted ones where nothing was audited."""
        share = self.correct_share
        count = self.accepted * (1 if share is None else share)
        return Fraction(1000 * nano) / count if count else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """Budgets of a month by team, nano-dollars, and what these teams have cost in it."""

    month: Period
    by_team: Mapping[str, int]
    spent_by_team: Mapping[str, int]
    #: To when it is counted: the end of the month, or of the period that is shown.
    to_ns: int

    @property
    def budget_nano(self) -> int:
        return sum(self.by_team.values())

    @property
    def spent_nano(self) -> int:
        return sum(self.spent_by_team.values())

    @property
    def over(self) -> dict[str, int]:
        """By how much each team is over its own."""
        over = {team: self.spent_by_team[team] - nano for team, nano in sorted(self.by_team.items())}
        return {team: nano for team, nano in over.items() if nano > 0}

    @property
    def counted(self) -> str:
        """`2026-06`, or `2026-06 up to 2026-06-11`."""
        if self.to_ns >= self.month.to_ns:
            return self.month.label
        return f"{self.month.label} up to {day_of(self.to_ns - 1)}"


def ask(asked: Asked, chosen: Link, before: Period | None) -> Priced[Spending]:
    """The charges of a period in the view, team and tag that are chosen."""
    earliest = min(asked.period.from_ns - _DAYS_BEFORE_NS, month_at(asked.period.to_ns - 1).from_ns)
    near = before is not None and before.to_ns == asked.period.from_ns
    if near and before is not None:
        earliest = min(earliest, before.from_ns)
    answer = books.bill(replace(asked, period=Period(earliest, asked.period.to_ns)))
    why_not = "" if before is not None else "it is compared with nothing"
    if answer.value is None:
        why_not, near = answer.error or "", False
        answer = books.bill(asked)
    if answer.value is None:
        return Priced(None, answer.error)
    bill = answer.value
    own_runs = _runs(asked.ledger, chosen.tag)
    earlier = bill if near else None
    if before is not None and earlier is None and not why_not:
        other = books.bill(replace(asked, period=before))
        earlier, why_not = other.value, other.error or ""
    rows_before = None
    if earlier is not None and before is not None:
        rows_before = _rows(asked, earlier, before, chosen, own_runs)
        if rows_before.is_empty:
            rows_before, why_not = None, f"nothing is charged in {words.period(before)}"
    return Priced(
        Spending(
            asked=asked,
            bill=bill,
            now=_rows(asked, bill, asked.period, chosen, own_runs),
            before=rows_before,
            before_stamp=None if rows_before is None or earlier is None else _stamp(earlier, rows_before.period),
            why_not=why_not,
        ),
        None,
    )


def kept(asked: Asked, period: Period) -> Kept:
    """How serving did in a period, the whole fleet. Raises ReadError, LedgerError."""
    return Kept(days=data.between(asked.ledger, "dashboard/slo_daily", period, asked.provenance))


def answers(asked: Asked, chosen: Link, rows: Rows) -> Answers:
    """The answers of the runs that are chosen. Raises ReadError, LedgerError."""
    verdicts = data.between(asked.ledger, "dashboard/answers_daily", rows.period, asked.provenance)
    own_runs = _runs(asked.ledger, chosen.tag)
    if own_runs is not None:
        verdicts = verdicts.filter(pl.col("run_id").is_in(own_runs))
    if chosen.team is not None:
        tags = data.tags_by_run(asked.ledger)
        own = [run_id for run_id, named in tags.items() if named.get("team") == chosen.team]
        verdicts = verdicts.filter(pl.col("run_id").is_in(own))
    counts = ("accepted", "audited", "correct")
    return Answers(days=verdicts.group_by("day").agg(pl.col(counts).sum()).sort("day"))


def runs_counted(asked: Asked) -> int:
    """How many runs `saved` prices at most: RL runs count, not the fleet they share. Raises ReadError, LedgerError."""
    return data.between(asked.ledger, "spend/runs", asked.period, asked.provenance).filter(~pl.col("shared")).height


def saved(asked: Asked) -> Priced[Saved]:
    """What borrowing saved in the runs that ended in the period, and in those that go on in it."""
    return data.kept(
        lambda: spend_saved.saved(
            asked.ledger,
            asked.period,
            provenance=asked.provenance,
            allow_unverified=asked.unverified,
            seen=data.seen(str(asked.ledger)),
        ),
        asked.ledger,
        "saved",
        *asked.key,
    )


def budgets(spending: Spending, chosen: Link) -> Budgets | None:
    """The budgets of the month in which the period ends, of the chosen team or all; None where none is set."""
    month = month_at(spending.asked.period.to_ns - 1)
    set_nano = budget.budgets(spending.asked.ledger, month)
    own = {team: nano for team, nano in set_nano.items() if chosen.team in (None, team)}
    if not own:
        return None
    of_month = _rows(spending.asked, spending.bill, month, Link(), None)
    spent = dict(of_month.summed.group_by("team").agg(pl.col("amount_nano").sum()).iter_rows())
    return Budgets(
        month=month,
        by_team=own,
        spent_by_team={team: int(spent.get(team, 0)) for team in own},
        to_ns=min(month.to_ns, spending.asked.period.to_ns),
    )


def watched(spending: Spending, now: datetime) -> Priced[Watch] | None:
    """Days of the period that stand out; None where no day of it is over."""
    over = books.over(spending.asked.period, now)
    if over is None or not spending.bill.frame.select(_within(over).any()).item():
        return None
    asked = spending.asked
    return data.kept(lambda: anomaly.watch(spending.bill, over), asked.ledger, "overview-days", over, *asked.key)


def not_closed(ledger: Path, provenance: str, now: datetime) -> list[Period]:
    """Months that are over, have charges and are not closed whole, oldest first."""
    span = books.span(ledger)
    posted = books.closes(ledger).value
    if span is None or posted is None:
        return []
    taken = [own[0].period for own in posted.values() if own[0].provenance == provenance]
    months = [month for month in books.months(span, now) if month.to_ns <= books.this_month(now).from_ns]
    return sorted(month for month in months if month.without(taken) and books.provenances(ledger, month))


def days_of(month: Period) -> int:
    """Days of a month."""
    return (month.to_ns - month.from_ns) // NS_PER_DAY


def _rows(asked: Asked, bill: Bill, period: Period, chosen: Link, own_runs: list[str] | None) -> Rows:
    def charges() -> pl.DataFrame:
        if chosen.view == FULLY_LOADED:
            frame = books.loaded(replace(asked, period=bill.period), bill)
            rollout = pl.col("work") == "rollout"
        else:
            frame, rollout = bill.frame, pl.col("bucket").is_in(ROLLOUT_BUCKETS)
        wanted = [_within(period)]
        if chosen.team is not None:
            wanted.append(pl.col("team") == chosen.team)
        if own_runs is not None:
            wanted.append(pl.col("run_id").is_in(own_runs))
        return frame.filter(*wanted).with_columns(amount_nano=pl.col(AMOUNT[chosen.view]), rollout=rollout)

    summed = data.kept(
        lambda: _summed(charges()),
        asked.ledger,
        "summed",
        period,
        bill.period,
        chosen.view,
        chosen.team,
        chosen.tag,
        *asked.key,
    )
    assert summed.value is not None, summed.error
    return Rows(period=period, charges=charges, summed=summed.value)


def drivers(spending: Spending, chosen: Link) -> Priced[Changes]:
    """What drove the change of what is chosen from the period before, by team; amortized.

    Without a value where the two cannot be compared.
    """
    before, before_stamp = spending.before, spending.before_stamp
    assert before is not None
    assert before_stamp is not None

    def made() -> Changes:
        was, now = (changes.side(rows.frame, "team") for rows in (before, spending.now))
        stamp = _stamp(spending.bill, spending.now.period)
        return changes.changes(was, now, by="team", before_stamp=before_stamp, stamp=stamp)

    asked = spending.asked
    return data.kept(made, asked.ledger, "drivers", before.period, chosen.team, chosen.tag, *asked.key)


def _stamp(bill: Bill, period: Period) -> Stamp:
    return replace(bill.stamp, from_ns=period.from_ns, to_ns=period.to_ns)


def _within(period: Period) -> pl.Expr:
    return pl.col("hour").is_between(naive(period.from_ns), naive(period.to_ns), closed="left")


def _runs(ledger: Path, tag: str | None) -> list[str] | None:
    """The runs that have a tag `name:value`; None for all of them."""
    if tag is None:
        return None
    name, _, value = tag.partition(":")
    return [run_id for run_id, tags in data.tags_by_run(ledger).items() if tags.get(name) == value]
