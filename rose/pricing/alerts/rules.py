"""Which alerts hold: rules, facts and a time in, alerts out. No clock, ledger or network of its own.

What is not known neither holds nor ceases to hold: a rule says which keys it looked at, and only for these can an alert
be over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from urllib.parse import quote

from rose.clock import iso
from rose.pricing.alerts.config import AnomalyRule, AnyRule, BudgetRule, MeterRule, SloRule, UnverifiedRule
from rose.pricing.money import format_money, format_ns

_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that cannot be had, and why."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A team's month, in nano-units of a currency; a forecast of None is not known."""

    team: str
    month: str
    budget_nano: int
    spent_nano: int
    forecast_nano: int | None
    currency: str = "USD"
    #: View, currency and provenance, in words.
    terms: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OddDay:
    """A metric of a day: whether it stands out, and what it came to."""

    day: date
    metric: str
    stands_out: bool
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """Serving requests that ended in [from_us, to_us), and those of them that kept their promises."""

    requests: int
    kept: int
    from_us: int
    to_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """Up to when the ledger was verified, UTC microseconds, and how many problems there were; None if it never was."""

    until_us: int | None
    problems: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """A device that had readings of its power: up to when, and up to when its time is accounted for (UTC ns)."""

    run_id: str
    device_id: str
    read_ns: int
    seen_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What the rules look at; `requests` by the window that a rule asks for, in seconds."""

    budgets: tuple[Budget, ...] | Unknown = ()
    odd_days: tuple[OddDay, ...] | Unknown = ()
    requests: Mapping[int, Requests | Unknown] = field(default_factory=dict)
    verification: Verification | Unknown = Unknown("nothing asked for it")
    meters: tuple[Meter, ...] | Unknown = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """Something that holds now. `key` stays the same while it does; one of a higher `level` is worth a new message."""

    key: str
    rule: str
    title: str
    text: str
    level: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one rule found; `unknown` says why it could not look."""

    rule: AnyRule
    alerts: tuple[Alert, ...] = ()
    looked_at: frozenset[str] = frozenset()
    unknown: str | None = None


def evaluate(rule: AnyRule, facts: Facts, now_us: int) -> Outcome:
    """What holds by a rule at a time, UTC microseconds since the Unix epoch."""
    match rule:
        case BudgetRule():
            return _budgets(rule, facts.budgets)
        case AnomalyRule():
            return _odd_days(rule, facts.odd_days)
        case SloRule():
            return _requests(rule, facts.requests.get(rule.window, Unknown("no request was counted")))
        case UnverifiedRule():
            return _verification(rule, facts.verification, now_us)
        case MeterRule():
            return _meters(rule, facts.meters)


def _budgets(rule: BudgetRule, budgets: tuple[Budget, ...] | Unknown) -> Outcome:
    if isinstance(budgets, Unknown):
        return Outcome(rule=rule, unknown=budgets.why)
    alerts, looked_at = [], set()
    for budget in budgets:
        key = f"{rule.name}/{budget.month}/{budget.team}"
        spent, whole = (format_money(nano, budget.currency) for nano in (budget.spent_nano, budget.budget_nano))
        terms = f" ({budget.terms})" if budget.terms else ""
        looked_at.add(f"{key}/spent")
        # A budget of nothing is reached by anything.
        reached = [at for at in rule.at if budget.spent_nano > 0 and budget.spent_nano >= at * budget.budget_nano]
        if reached:
            alerts.append(
                Alert(
                    key=f"{key}/spent",
                    rule=rule.name,
                    level=round(1000 * max(reached)),
                    title=f"{budget.team} has spent {max(reached):.0%} of its budget for {budget.month}",
                    text=f"Team {budget.team} has spent {spent} of {whole} in {budget.month}{terms}.",
                )
            )
        if not rule.forecast or budget.forecast_nano is None:
            continue
        looked_at.add(f"{key}/forecast")
        if budget.forecast_nano > budget.budget_nano >= budget.spent_nano:
            expected = format_money(budget.forecast_nano, budget.currency)
            alerts.append(
                Alert(
                    key=f"{key}/forecast",
                    rule=rule.name,
                    title=f"{budget.team} is forecast to exceed its budget for {budget.month}",
                    text=f"Team {budget.team} has spent {spent} of {whole} in {budget.month}, and is forecast to spend "
                    f"{expected}{terms}.",
                )
            )
    return Outcome(rule=rule, alerts=tuple(alerts), looked_at=frozenset(looked_at))


def _odd_days(rule: AnomalyRule, days: tuple[OddDay, ...] | Unknown) -> Outcome:
    if isinstance(days, Unknown):
        return Outcome(rule=rule, unknown=days.why)
    last = sorted({odd.day for odd in days})[-rule.days :]
    asked = {f"{rule.name}/{odd.day}/{odd.metric}": odd for odd in days if odd.day in last}
    alerts = tuple(
        Alert(key=key, rule=rule.name, title=f"{odd.metric} of {odd.day} stands out", text=odd.text)
        for key, odd in asked.items()
        if odd.stands_out
    )
    return Outcome(rule=rule, alerts=alerts, looked_at=frozenset(asked))


def _requests(rule: SloRule, counted: Requests | Unknown) -> Outcome:
    if isinstance(counted, Unknown):
        return Outcome(rule=rule, unknown=counted.why)
    if counted.requests < rule.requests_min:
        why = f"{counted.requests} requests were served since {iso(counted.from_us)[:19]}Z, {rule.requests_min} needed"
        return Outcome(rule=rule, unknown=why)
    key, share = f"{rule.name}/kept", counted.kept / counted.requests
    alert = Alert(
        key=key,
        rule=rule.name,
        title=f"serving kept {share:.2%} of its promises, under {rule.target:.2%}",
        text=f"Of {counted.requests:,} serving requests from {iso(counted.from_us)[:19]}Z to "
        f"{iso(counted.to_us)[:19]}Z, {counted.requests - counted.kept:,} missed their latency budget.",
    )
    # As it was written, so that exactly the target is not under it.
    missed = counted.kept < Fraction(str(rule.target)) * counted.requests
    return Outcome(rule=rule, alerts=(alert,) if missed else (), looked_at=frozenset({key}))


def _verification(rule: UnverifiedRule, state: Verification | Unknown, now_us: int) -> Outcome:
    if isinstance(state, Unknown):
        return Outcome(rule=rule, unknown=state.why)
    problems, stale = f"{rule.name}/problems", f"{rule.name}/stale"
    way_out = "run `rose ledger verify`, or the job `audit`"
    alerts = []
    if state.problems:
        alerts.append(
            Alert(
                key=problems,
                rule=rule.name,
                title=f"the ledger has {state.problems} problems",
                level=state.problems,
                text="Its figures cannot be trusted: `rose ledger verify` names what is wrong.",
            )
        )
    if state.until_us is None:
        alerts.append(
            Alert(key=stale, rule=rule.name, title="the ledger was never verified", text=f"To verify it, {way_out}.")
        )
    elif now_us - state.until_us > rule.after * _US_PER_S:
        age = format_ns((now_us - state.until_us) * 1000)
        alerts.append(
            Alert(
                key=stale,
                rule=rule.name,
                title=f"the ledger was not verified for {age}",
                text=f"It was last verified at {iso(state.until_us)[:19]}Z: {way_out}.",
            )
        )
    return Outcome(rule=rule, alerts=tuple(alerts), looked_at=frozenset({problems, stale}))


def _meters(rule: MeterRule, meters: tuple[Meter, ...] | Unknown) -> Outcome:
    if isinstance(meters, Unknown):
        return Outcome(rule=rule, unknown=meters.why)
    keys = {f"{rule.name}/{quote(meter.run_id, safe='')}/{meter.device_id}": meter for meter in meters}
    alerts = tuple(
        Alert(
            key=key,
            rule=rule.name,
            title=f"device {meter.device_id} has no power readings",
            text=f"Device {meter.device_id} of run {meter.run_id} was last metered at "
            f"{iso(meter.read_ns // 1000)[:19]}Z, and worked until {iso(meter.seen_ns // 1000)[:19]}Z: its energy "
            "since is not measured.",
        )
        for key, meter in keys.items()
        if meter.seen_ns - meter.read_ns > rule.after * 1000 * _US_PER_S
    )
    return Outcome(rule=rule, alerts=alerts, looked_at=frozenset(keys))
