"""The facts of a ledger that the rules of a file look at; what cannot be had is unknown, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from rose.errors import UserError
from rose.ledger import catalog, layout, verified
from rose.pricing import query
from rose.pricing.alerts.config import AlertsConfig, AnomalyRule, AnyRule, BudgetRule, MeterRule, SloRule
from rose.pricing.alerts.rules import Budget, Facts, Meter, OddDay, Requests, Unknown, Verification
from rose.pricing.closing.period import NS_PER_DAY, Period, day_of, of_day
from rose.pricing.watch import anomaly, budget

#: Readings of a device's power before these days say nothing of it now.
_METERED_DAYS = 7
T = TypeVar("T")


def facts(root: Path, config: AlertsConfig, now_us: int) -> Facts:
    """Only what some rule asks for. Raises LedgerError for a folder that is no ledger."""
    root, rules, provenance = layout.check(root), config.rule, config.provenance
    days = max((rule.days for rule in _of(rules, AnomalyRule)), default=0)
    asks_budgets, asks_meters = any(_of(rules, BudgetRule)), any(_of(rules, MeterRule))
    return Facts(
        budgets=_known(lambda: _budgets(root, config, now_us)) if asks_budgets else (),
        odd_days=_known(lambda: _odd_days(root, config, days, now_us)) if days else (),
        requests={
            rule.window: _known(lambda rule=rule: _requests(root, provenance, rule.window, now_us))  # type: ignore[misc]
            for rule in _of(rules, SloRule)
        },
        verification=_verification(root),
        meters=_known(lambda: _meters(root, provenance, now_us)) if asks_meters else (),
    )


def _known(get: Callable[[], T]) -> T | Unknown:
    try:
        return get()
    except UserError as error:
        return Unknown(str(error))


def _of(rules: Iterable[AnyRule], kind: type[T]) -> Iterable[T]:
    return (rule for rule in rules if isinstance(rule, kind))


def _budgets(root: Path, config: AlertsConfig, now_us: int) -> tuple[Budget, ...]:
    month = budget.current_month(now_us)
    if not budget.budgets(root, month):
        return ()
    rows = budget.show(root, month, config.price_book, provenance=config.provenance, now_us=now_us)
    return tuple(
        Budget(
            team=row.team,
            month=row.month,
            budget_nano=int(row.budget.value or 0),
            spent_nano=int(row.spent.value or 0),
            currency=row.spent.stamp.currency,
            terms=f"{row.spent.view}; {row.spent.stamp}",
            forecast_nano=None if row.forecast.value is None else int(row.forecast.value),
        )
        for row in rows
    )


def _odd_days(root: Path, config: AlertsConfig, days: int, now_us: int) -> tuple[OddDay, ...]:
    today_ns = of_day(day_of(now_us * 1000)).from_ns
    judged = Period(today_ns - days * NS_PER_DAY, today_ns)
    watched = anomaly.find(root, judged, config.price_book, provenance=config.provenance)
    found = {(one.day, one.metric): one for one in watched.anomalies}
    odd_days = []
    for day in watched.judged:
        for metric in anomaly.METRICS:
            one = found.get((day, metric.name))
            odd_days.append(
                OddDay(day=day, metric=metric.name, stands_out=one is not None, text="" if one is None else _told(one))
            )
    return tuple(odd_days)


def _told(one: anomaly.Anomaly) -> str:
    return (
        f"It was {one.value.text} ({one.value.view}; {one.value.stamp}), {anomaly.roughly(one.change_nano)} from "
        f"{one.median.text} on {one.compared_with}; `{one.why}` says what drove the change."
    )


def _requests(root: Path, provenance: str, window_s: int, now_us: int) -> Requests:
    from_us = now_us - window_s * 1_000_000
    with catalog.connect(root) as connection:
        query.set_variables(connection, provenance=provenance, from_ns=from_us * 1000, to_ns=now_us * 1000)
        (row,) = query.rows(connection, "alerts/serving")
    return Requests(requests=row["requests"], kept=row["kept"], from_us=from_us, to_us=now_us)


def _verification(root: Path) -> Verification:
    last = verified.state(root)
    return (
        Verification(until_us=None, problems=0)
        if last is None
        else Verification(until_us=last.until_us, problems=last.problems)
    )


def _meters(root: Path, provenance: str, now_us: int) -> tuple[Meter, ...]:
    with catalog.connect(root) as connection:
        query.set_variables(connection, provenance=provenance, from_ns=now_us * 1000 - _METERED_DAYS * NS_PER_DAY)
        return tuple(Meter(**row) for row in query.rows(connection, "alerts/meters"))
