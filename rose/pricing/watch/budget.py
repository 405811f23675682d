"""Budgets of teams for months, and what a month will cost: the fleet and every team, with a budget or without.

What is spent is exact to the nano-dollar. A charge counts in the month whose hours it charges; a correction too,
whenever it was posted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl

from rose.clock import utc_us
from rose.errors import did_you_mean
from rose.ledger import layout
from rose.pricing.closing import records, store
from rose.pricing.closing.bill import Bill, bill
from rose.pricing.closing.close import user
from rose.pricing.closing.period import NS_PER_DAY, Period, day_of, month_at, naive, of_day
from rose.pricing.closing.records import Budget
from rose.pricing.figures import AMORTIZED, Figure, Figures, Stamp
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.watch.forecast import Forecast, forecast

#: Days before the current one that a forecast is fitted to.
HISTORY_DAYS = 56

_NO_CHARGE = "no charge names this team: check how it is spelt"


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamBudget:
    """One team's budget for a month beside what it spent; `spent` = `closed` + `open`."""

    team: str
    month: str
    budget: Figure
    spent: Figure
    closed: Figure
    open: Figure
    left: Figure
    forecast: Figure
    over: Figure
    #: False where no charge that was read names the team: its zeros are true, its name may be wrong, and it has no
    #: forecast.
    known: bool

    def to_json(self) -> dict[str, Any]:
        figures = ("budget", "spent", "closed", "open", "left", "forecast", "over")
        named = {"team": self.team, "month": self.month, "has_charges": self.known}
        return {**named, **self.spent.stamp.to_json(), **{name: getattr(self, name).to_json() for name in figures}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What a team, or the fleet where `team` is None, has spent of a month, and what the month will have cost."""

    team: str | None
    month: str
    spent: Figure
    forecast: Figure

    def to_json(self) -> dict[str, Any]:
        named = {"team": self.team, "month": self.month}
        amounts = {"spent": self.spent.to_json(), "forecast": self.forecast.to_json()}
        return {**named, **self.spent.stamp.to_json(), **amounts}


def set_budget(root: Path, team: str, usd: str, month: Period, *, by: str | None = None) -> int:
    """Set a team's budget for a month; returns nano-dollars. Earlier budgets stay in the ledger, the last one holds.

    Raises PricingError for an amount that is none, or a team without a name; LedgerError.
    """
    if not team.strip():
        raise PricingError("the team has no name; give the value of the tag `team`, or unallocated")
    try:
        nano = Fraction(Decimal(usd.replace(",", "").removeprefix("$"))) * NANO_USD_PER_USD
    except (InvalidOperation, ValueError, OverflowError):
        raise PricingError(f"budget {usd!r} is no amount; write dollars such as 12000 or 12000.50") from None
    if nano < 0 or nano.denominator != 1 or nano >= 2**63:
        raise PricingError(f"budget {usd!r} must be 0 or more dollars, with 9 decimals at most")
    root = layout.check(root)
    with store.lock(root):
        now_us, who = utc_us(), by or user()
        given = Budget(team=team, month=month.label, budget_nano=int(nano), currency="USD", set_us=now_us, set_by=who)
        store.record_budget(root, given)
    return int(nano)


def budgets(root: Path, month: Period) -> dict[str, int]:
    """Nano-dollars of each team that has a budget for the month. Raises LedgerError."""
    # A later budget of a team replaces the one before.
    return {budget.team: budget.budget_nano for budget in records.budgets(root) if budget.month == month.label}


def show(
    root: Path,
    month: Period,
    book: PriceBook | str | None,
    *,
    provenance: str | None = None,
    allow_unverified: bool = False,
    now_us: int | None = None,
) -> list[TeamBudget]:
    """Every team with a budget for the month; `book` prices the hours that are not closed, as for `bill`.

    Raises PricingError where no budget is set for the month, or its charges cannot be priced.
    """
    budgets_nano = budgets(root, month)
    if not budgets_nano:
        raise PricingError(
            f"no budget is set for {month.label}; set one with `rose books budget TEAM USD --month {month.label}`"
        )
    now_ns = 1000 * (utc_us() if now_us is None else now_us)
    charged, stamp, unread = _charged(
        root, month, book, now_ns, provenance=provenance, allow_unverified=allow_unverified
    )
    hours = charged.hours
    return [_team(hours, stamp, team, nano, month, now_ns, unread) for team, nano in sorted(budgets_nano.items())]


def expected(
    root: Path,
    month: Period,
    book: PriceBook | str | None,
    team: str | None = None,
    *,
    provenance: str | None = None,
    allow_unverified: bool = False,
    now_us: int | None = None,
) -> list[Expected]:
    """The fleet and then every team, with a budget or without; with `team` only that one. `book`: as for `bill`.

    Raises PricingError for a team that no charge names, a month that has not begun, or charges that cannot be priced.
    """
    now_ns = 1000 * (utc_us() if now_us is None else now_us)
    charged, stamp, unread = _charged(
        root, month, book, now_ns, provenance=provenance, allow_unverified=allow_unverified
    )
    hours = charged.hours
    teams = sorted(hours["team"].unique())
    if team is not None and team not in teams:
        raise PricingError(f"no charge of the time read names team {team!r}{did_you_mean(team, teams)}")
    make, left = Figures(stamp), _left(month, now_ns)
    rows = []
    for name in (None, *teams) if team is None else (team,):
        spent, _ = _spent(hours, name, month)
        made = forecast(_history(hours, name, now_ns), spent, left)
        made = dataclasses.replace(made, method=made.method + unread)
        rows.append(
            Expected(
                team=name,
                month=month.label,
                spent=make.amount(spent, AMORTIZED),
                forecast=_forecast_figure(stamp, made),
            )
        )
    return rows


def _charged(
    root: Path,
    month: Period,
    book: PriceBook | str | None,
    now_ns: int,
    *,
    provenance: str | None,
    allow_unverified: bool,
) -> tuple[Bill, Stamp, str]:
    """The charges of the month so far and of the days that a forecast is fitted to, and the stamp of the month.

    And why days before the month are missing, in words; empty if none are.
    """
    if now_ns < month.from_ns:
        raise PricingError(f"{month.label} has not begun; there is nothing to show yet")
    so_far = Period(month.from_ns, min(month.to_ns, (now_ns // NS_PER_HOUR + 1) * NS_PER_HOUR))

    def billed(period: Period) -> Bill:
        return bill(root, period, book, provenance=provenance, allow_unverified=allow_unverified)

    charged, unread = None, ""
    if now_ns < month.to_ns:
        try:
            charged = billed(Period(of_day(day_of(now_ns)).from_ns - HISTORY_DAYS * NS_PER_DAY, so_far.to_ns))
        except PricingError as error:
            # The forecast is then fitted to the days of the month.
            unread = f"; the days before {month.label} cannot be priced: {error}"
    charged = charged or billed(so_far)
    return charged, dataclasses.replace(charged.stamp, from_ns=so_far.from_ns, to_ns=so_far.to_ns), unread


def current_month(now_us: int | None = None) -> Period:
    """The UTC month that runs."""
    return month_at(1000 * (utc_us() if now_us is None else now_us))


def _team(
    hours: pl.DataFrame, stamp: Stamp, team: str, budget_nano: int, month: Period, now_ns: int, unread: str
) -> TeamBudget:
    make = Figures(stamp)
    spent, closed = _spent(hours, team, month)
    known = team in hours["team"]
    made = Forecast(method=_NO_CHARGE)
    if known:
        made = forecast(_history(hours, team, now_ns), spent, _left(month, now_ns), budget_nano)
        made = dataclasses.replace(made, method=made.method + unread)
    return TeamBudget(
        team=team,
        month=month.label,
        budget=Figure(value=budget_nano, unit="nano_usd", view=AMORTIZED, stamp=stamp, basis="budget"),
        spent=make.amount(spent, AMORTIZED),
        closed=make.amount(closed, AMORTIZED),
        open=make.amount(spent - closed, AMORTIZED),
        left=make.amount(budget_nano - spent, AMORTIZED),
        forecast=_forecast_figure(stamp, made),
        over=make.part(None if made.over_share is None else Fraction(made.over_share), why=made.method),
        known=known,
    )


def _spent(hours: pl.DataFrame, team: str | None, month: Period) -> tuple[int, int]:
    """Nano-dollars of a team (None: of all) in the month, and those of them that are closed."""
    own = _own(hours, team).filter(pl.col("hour").is_between(naive(month.from_ns), naive(month.to_ns), closed="left"))
    return int(own["cost_nano"].sum()), int(own.filter(pl.col("closed"))["cost_nano"].sum())


def _own(frame: pl.DataFrame, team: str | None) -> pl.DataFrame:
    return frame if team is None else frame.filter(pl.col("team") == team)


def _forecast_figure(stamp: Stamp, made: Forecast) -> Figure:
    return Figure(
        value=made.expected_nano,
        unit="nano_usd",
        view=AMORTIZED,
        stamp=stamp,
        basis=f"estimated: {made.method}",
        why=made.method if made.expected_nano is None else None,
        low=made.low_nano,
        high=made.high_nano,
    )


def _history(hours: pl.DataFrame, team: str | None, now_ns: int) -> Mapping[date, int]:
    """What the team cost on each day that is over, from the fleet's first whole one on; 0 where nothing is charged."""
    day = pl.col("hour").dt.date().alias("day")
    over = hours.filter(pl.col("hour") < naive(of_day(day_of(now_ns)).from_ns))
    if over.is_empty():
        return {}
    began, last = over["hour"].min(), day_of(now_ns) - timedelta(days=1)
    assert isinstance(began, datetime)
    first = began.date() + timedelta(days=began.hour > 0)
    cost = dict(_own(over, team).group_by(day).agg(pl.col("cost_nano").sum()).iter_rows())
    days = (first + timedelta(days=n) for n in range((last - first).days + 1))
    return {when: int(cost.get(when, 0)) for when in days}


def _left(month: Period, now_ns: int) -> list[tuple[date, Fraction]]:
    """Days of the month that are not over, with the share of each that is left."""
    begin_ns = max(month.from_ns, now_ns)
    left = []
    while begin_ns < month.to_ns:
        end_ns = min(of_day(day_of(begin_ns)).to_ns, month.to_ns)
        left.append((day_of(begin_ns), Fraction(end_ns - begin_ns, NS_PER_DAY)))
        begin_ns = end_ns
    return left
