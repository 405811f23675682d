"""Monthly budgets of teams, and forecasts of cost. A charge or a correction counts in the month of its hours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import polars as pl

from rose.clock import utc_us
from rose.errors import did_you_mean
from rose.ledger.ledger import Ledger
from rose.pricing.closing.bill import bill
from rose.pricing.closing.close import user
from rose.pricing.figures import AMORTIZED, Figure, Figures, Stamp
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, USD, PricingError
from rose.pricing.period import NS_PER_DAY, Period, day_of, naive
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.table import Column, Mark, Table, notes, report_table
from rose.pricing.watch.forecast import Forecast, forecast

HISTORY_DAYS = 56  #: Past days that a forecast is fitted to.

BUDGETED = "budgeted"  #: Action of the ledger's event.

_NO_CHARGE = "this team has no charge: check how its name is spelt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The spending and the forecast of a team for a month. If `team` is None, they are those of the fleet."""

    team: str | None
    month: str
    spent: Figure
    forecast: Figure

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: value.to_json() if isinstance(value, Figure) else value for name, value in values.items()}
        return {**self.spent.stamp.to_json(), **plain}


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamBudget(Expected):
    """A team's budget for a month, and what the team has spent. `spent` = `closed` + `open`."""

    team: str
    budget: Figure
    closed: Figure
    open: Figure
    left: Figure
    over: Figure
    #: False if the team has no charge: its zeros are true, its name may be wrong, and it has no forecast.
    has_charges: bool


def set_budget(ledger: Ledger, team: str, usd: str, month: Period, *, by: str | None = None) -> int:
    """Set a team's budget for a month. Return the budget in nano-dollars. Raises PricingError or LedgerError."""
    if not team.strip():
        raise PricingError("the team has no name; give the value of the tag `team`, or unallocated")
    try:
        nano = Fraction(Decimal(usd.replace(",", "").removeprefix("$"))) * NANO_USD_PER_USD
    except (InvalidOperation, ValueError, OverflowError):
        raise PricingError(f"budget {usd!r} is not an amount; write dollars such as 12000 or 12000.50") from None
    if nano < 0 or nano.denominator != 1 or nano >= 2**63:
        raise PricingError(f"budget {usd!r} must be 0 or more dollars, with 9 decimals at most")
    with ledger.lock("closing"):
        set_us, detail = utc_us(), {"team": team, "month": month.label, "budget_nano": int(nano), "currency": USD}
        ledger.record_in_books(BUDGETED, {**detail, "set_us": set_us, "set_by": by or user()}, set_us)
    return int(nano)


def budgets(ledger: Ledger, month: Period) -> dict[str, int]:
    """Return each team's budget for the month, as last set, in nano-dollars. Raises LedgerError."""
    recorded = ledger.book_details(BUDGETED)
    return {detail["team"]: detail["budget_nano"] for detail in recorded if detail["month"] == month.label}


def show(
    ledger: Ledger,
    month: Period,
    book: PriceBook | str | None,
    *,
    provenance: str | None = None,
    now_us: int | None = None,
) -> list[TeamBudget]:
    """Return budget and spending of each team with a budget. `book` prices open hours. Raises PricingError."""
    budgets_nano = budgets(ledger, month)
    if not budgets_nano:
        raise PricingError(
            f"no budget is set for {month.label}; set one with `rose books budget TEAM USD --month {month.label}`"
        )
    costs = _Costs.read(ledger, month, book, now_us, provenance)
    return [_team_budget(costs, team, nano) for team, nano in sorted(budgets_nano.items())]


def expected(
    ledger: Ledger,
    month: Period,
    book: PriceBook | str | None,
    team: str | None = None,
    *,
    provenance: str | None = None,
    now_us: int | None = None,
) -> list[Expected]:
    """Return figures of the fleet and each team, or only of `team`. `book` prices open hours. Raises PricingError."""
    costs = _Costs.read(ledger, month, book, now_us, provenance)
    teams = sorted(costs.hours["team"].unique())
    if team is not None and team not in teams:
        raise PricingError(f"the month and earlier days have no charge of team {team!r}{did_you_mean(team, teams)}")
    rows = []
    for name in (None, *teams) if team is None else (team,):
        estimate = costs.forecast(name)
        spent = Figures(costs.stamp).amount(costs.spent(name)[0], AMORTIZED)
        rows.append(Expected(team=name, month=month.label, spent=spent, forecast=_figure(costs.stamp, estimate)))
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    hours: pl.DataFrame
    stamp: Stamp
    month: Period
    now_ns: int
    unread: str  #: Why days before the month are missing; empty if none are.

    @classmethod
    def read(
        cls, ledger: Ledger, month: Period, book: PriceBook | str | None, now_us: int | None, provenance: str | None
    ) -> _Costs:
        now_ns = 1000 * (utc_us() if now_us is None else now_us)
        if now_ns < month.from_ns:
            raise PricingError(f"{month.label} has not begun; give an earlier month")
        so_far = Period(month.from_ns, min(month.to_ns, (now_ns // NS_PER_HOUR + 1) * NS_PER_HOUR))
        charges, unread = None, ""
        if now_ns < month.to_ns:
            fitted = Period((now_ns // NS_PER_DAY - HISTORY_DAYS) * NS_PER_DAY, so_far.to_ns)
            try:
                charges = bill(ledger, fitted, book, provenance=provenance)
            except PricingError as error:
                # The forecast is then fitted to the days of the month.
                unread = f"; the days before {month.label} cannot be priced: {error}"
        charges = charges or bill(ledger, so_far, book, provenance=provenance)
        stamp = dataclasses.replace(charges.stamp, from_ns=so_far.from_ns, to_ns=so_far.to_ns)
        return cls(hours=charges.by("team"), stamp=stamp, month=month, now_ns=now_ns, unread=unread)

    def spent(self, team: str | None) -> tuple[int, int]:
        """Return a team's cost in the month, and the part of this cost from closed hours, in nano-dollars."""
        begin, end = naive(self.month.from_ns), naive(self.month.to_ns)
        hours = _of_team(self.hours, team).filter(pl.col("hour").is_between(begin, end, closed="left"))
        return int(hours["cost_nano"].sum()), int(hours.filter(pl.col("closed"))["cost_nano"].sum())

    def forecast(self, team: str | None, budget_nano: int | None = None) -> Forecast:
        estimate = forecast(self._history(team), self.spent(team)[0], _left(self.month, self.now_ns), budget_nano)
        return dataclasses.replace(estimate, method=estimate.method + self.unread)

    def _history(self, team: str | None) -> Mapping[date, int]:
        """Return the team's nano-dollars on each past day, from the first whole day on which the fleet had charges."""
        day = pl.col("hour").dt.date().alias("day")
        past = self.hours.filter(pl.col("hour") < naive(self.now_ns // NS_PER_DAY * NS_PER_DAY))
        if past.is_empty():
            return {}
        first_hour, last = past["hour"].min(), day_of(self.now_ns) - timedelta(days=1)
        assert isinstance(first_hour, datetime)
        first = first_hour.date() + timedelta(days=first_hour.hour > 0)
        cost = dict(_of_team(past, team).group_by(day).agg(pl.col("cost_nano").sum()).iter_rows())
        days = (first + timedelta(days=n) for n in range((last - first).days + 1))
        return {when: int(cost.get(when, 0)) for when in days}


def _team_budget(costs: _Costs, team: str, budget_nano: int) -> TeamBudget:
    make, (spent, closed) = Figures(costs.stamp), costs.spent(team)
    has_charges = team in costs.hours["team"]
    estimate = costs.forecast(team, budget_nano) if has_charges else Forecast(method=_NO_CHARGE)
    return TeamBudget(
        team=team,
        month=costs.month.label,
        budget=make.amount(budget_nano, AMORTIZED, basis="budget"),
        spent=make.amount(spent, AMORTIZED),
        closed=make.amount(closed, AMORTIZED),
        open=make.amount(spent - closed, AMORTIZED),
        left=make.amount(budget_nano - spent, AMORTIZED),
        forecast=_figure(costs.stamp, estimate),
        over=make.measure(estimate.over_share, "share", why=estimate.method),
        has_charges=has_charges,
    )


def _of_team(hours: pl.DataFrame, team: str | None) -> pl.DataFrame:
    return hours if team is None else hours.filter(pl.col("team") == team)


def _figure(stamp: Stamp, estimate: Forecast) -> Figure:
    basis = f"estimated: {estimate.method}"
    figure = Figures(stamp).amount(estimate.expected_nano, AMORTIZED, basis=basis, why=estimate.method)
    return dataclasses.replace(figure, low=estimate.low_nano, high=estimate.high_nano)


def _left(month: Period, now_ns: int) -> list[tuple[date, Fraction]]:
    begin_ns = max(month.from_ns, now_ns)
    days = []
    while begin_ns < month.to_ns:
        end_ns = min((begin_ns // NS_PER_DAY + 1) * NS_PER_DAY, month.to_ns)
        days.append((day_of(begin_ns), Fraction(end_ns - begin_ns, NS_PER_DAY)))
        begin_ns = end_ns
    return days


def budget_tables(rows: Sequence[TeamBudget]) -> Iterator[Table]:
    alarms: dict[int, Mark] = {number: "alarm" for number, row in enumerate(rows) if int(row.left.value or 0) < 0}
    unknown = [row.team for row in rows if not row.has_charges]
    reasons = sorted({row.forecast.why or row.forecast.basis for row in rows if row.has_charges})
    names = ("budget", "spent", "closed", "left", "forecast")
    money = (Column(name, "money") for name in names)
    yield Table(
        title=f"Budgets of {rows[0].month}",
        view=AMORTIZED,
        stamp=rows[0].spent.stamp,
        columns=(Column("team"), *money, Column("95% interval", "figure"), Column("chance of going over", "figure")),
        rows=tuple(
            (row.team, *(getattr(row, name).value for name in names), row.forecast.short_interval, row.over.short_text)
            for row in rows
        ),
        marks=alarms,
        notes=notes("; ".join(reasons + ([f"no charge at all: {', '.join(unknown)}"] if unknown else []))),
    )


def forecast_tables(rows: Sequence[Expected]) -> Iterator[Table]:
    yield report_table(
        rows[0].spent.stamp,
        f"What {rows[0].month} will have cost",
        "team | spent | forecast | 95% interval",
        (
            (row.team or "the fleet", row.spent.text, row.forecast.short_text, row.forecast.short_interval)
            for row in rows
        ),
        view=AMORTIZED,
        marks={number: "strong" for number, row in enumerate(rows) if row.team is None},
        notes=notes("; ".join(dict.fromkeys(row.forecast.why or row.forecast.basis for row in rows))),
    )
