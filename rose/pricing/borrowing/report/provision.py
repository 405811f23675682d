"""The provision for later bursts as figures: its rates, what was accrued and realised, and the balance day by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path

import sql
from rose.pricing import formulas
from rose.pricing.borrowing import provision
from rose.pricing.borrowing.provision import Accrual, Balance, Rate
from rose.pricing.borrowing.report.common import NO_BORROW, Head, amount, counted, head, per_device_hour
from rose.pricing.borrowing.terms import Stretches, nano_by_key
from rose.pricing.figures import MARGINAL, Figure, Figures
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.stats.bootstrap import Interval

_S_PER_HOUR = 3600
_DAY_S = 86_400
HORIZON_S = provision.HORIZON_NS // 10**9
_NOTHING_LENT = "nothing was lent"
_NOT_DRAWN = "confounded: leases follow load, and bursts on lent devices are compared with those on others"
_BEFORE = "not enough data up to this day"


@dataclass(frozen=True, kw_only=True, slots=True)
class RateRow:
    """One fifth of serving load: how often a burst follows, what it costs, and what to provide for a lent hour."""

    windows: Figure
    bursts: Figure
    hazard_per_hour: Figure
    extra_misses: Figure
    misses_per_device_hour: Figure
    provision_per_device_hour: Figure
    #: Figures that are of all fifths together, since this one's own data were too few.
    pooled: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DayRow:
    """One UTC day: opening + accrued - realised - released = closing."""

    day: str
    opening: Figure
    accrued: Figure
    realised: Figure
    released: Figure
    closing: Figure
    #: Which days the rates are of.
    rates_of: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvisionDocument:
    head: Head
    horizon: Figure
    penalty: Figure
    #: By fifth of serving load, at the newest penalty.
    rates: Mapping[int, RateRow]
    accrued: Figure
    realised: Figure
    rests_on: str
    #: Lent time whose serving load is not known, so that nothing is provided for it.
    not_provided_for: Figure
    days: tuple[DayRow, ...]
    #: By lease, where asked for; they sum to `accrued`.
    leases: Mapping[str, Figure]
    #: The provision for a borrowed device-hour at which it costs as much as its work on dedicated devices does at their
    #: amortized price (BREAK_EVEN_TIME), and what was realised for one.
    break_even: Figure
    realised_per_device_hour: Figure


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
    *,
    by_lease: bool = False,
    horizon_s: int = HORIZON_S,
) -> ProvisionDocument:
    """The provision of a run. `horizon_s` seconds, a divisor of a day.

    Raises what `rose.pricing.run.report.build` raises, and PricingError for another horizon.
    """
    with priced(root, run_id, price_book, allow_unverified) as run:
        return document(run, by_lease=by_lease, horizon_s=horizon_s)


def document(run: PricedRun, *, by_lease: bool = False, horizon_s: int = HORIZON_S) -> ProvisionDocument:
    """The provision of a run that is priced. Raises PricingError for a horizon that divides no day."""
    if horizon_s < 1 or _DAY_S % horizon_s:
        raise PricingError(f"a horizon must be whole seconds that divide a day, such as 10 or 60; got {horizon_s}")
    horizon_ns = horizon_s * 10**9
    make, term = run.make, run.borrow.terms["provision"]
    stretches = Stretches.over(run.book, run.allocation.period_ns)
    set_variables(run.connection, run_id=run.run.run_id, horizon_ns=horizon_ns, by_lease=by_lease)
    run.connection.execute(sql.read("borrowing/serving_windows.sql"))
    risk, bursts, lent = (
        rows(run.connection, f"borrowing/{f}") for f in ("burst_risk", "burst_violations", "lent_windows")
    )
    accruals = provision.accrue(lent, risk, bursts, stretches, run.book, horizon_ns)
    realised = provision.realised_by_day(run.borrow.harm, run.connection, stretches, run.book)
    per_miss = provision.penalties(stretches, run.book)
    penalty = per_miss[-1] if any(per_miss) else None
    unknown = term.explained if term.basis == "absent" else term.missing
    accrued = {accrual.day: accrual.usd for accrual in accruals}
    balances = provision.roll_forward(accrued, {} if unknown else realised)
    known = [balance.accrued for balance in balances if balance.accrued is not None]
    return ProvisionDocument(
        head=head(run),
        horizon=make.number(horizon_ns, "ns"),
        penalty=make.money(penalty, MARGINAL, per="missed budget", basis="price book", why=provision.NO_PENALTY),
        rates={
            load_bin: _rate(make, rate, penalty) for load_bin, rate in provision.rates(risk, bursts, horizon_ns).items()
        },
        accrued=amount(make, sum(known) if known else None, why=_why_none(accruals)),
        realised=make.money(
            None if unknown else term.usd,
            MARGINAL,
            basis=term.basis,
            why=unknown,
            interval=term.interval,
            no_interval=term.no_interval,
        ),
        rests_on=term.explained,
        not_provided_for=make.number(sum(accrual.unknown_ns for accrual in accruals), "ns"),
        days=_days(make, balances, {accrual.day: accrual for accrual in accruals}, unknown),
        leases=_by_lease(make, accruals, sum(known)) if by_lease else {},
        break_even=_break_even(run),
        realised_per_device_hour=make.money(
            None if unknown else run.borrow.usd_per_device_hour("provision"),
            MARGINAL,
            per="device-hour",
            basis=term.basis,
            why=unknown or NO_BORROW,
            interval=per_device_hour(term.interval, run.borrow),
            no_interval=term.no_interval,
        ),
    )


def _why_none(accruals: Sequence[Accrual]) -> str | None:
    if not accruals:
        return _NOTHING_LENT
    return accruals[-1].why if all(accrual.usd is None for accrual in accruals) else None


def _rate(make: Figures, rate: Rate, penalty: Fraction | None) -> RateRow:
    per_hour = None if rate.hazard_per_s is None else float(rate.hazard_per_s) * _S_PER_HOUR
    misses = None if rate.misses_per_s is None else rate.misses_per_s * _S_PER_HOUR
    return RateRow(
        windows=make.number(rate.windows, "count"),
        bursts=make.number(rate.bursts, "count"),
        hazard_per_hour=counted(make, per_hour, "ratio", why=rate.why, interval=_times(rate.hazard_interval)),
        extra_misses=counted(
            make,
            None if rate.extra is None else float(rate.extra),
            "ratio",
            why=rate.why,
            no_interval=_NOT_DRAWN,
        ),
        misses_per_device_hour=counted(make, None if misses is None else float(misses), "ratio", why=rate.why),
        provision_per_device_hour=make.money(
            None if misses is None or penalty is None else misses * penalty,
            MARGINAL,
            per="device-hour",
            why=rate.why or provision.NO_PENALTY,
        ),
        pooled=rate.pooled if rate.why is None else (),
    )


def _times(interval: Interval | None) -> Interval | None:
    """Of a second, for an hour."""
    if interval is None or interval.high is None:
        return None
    return Interval(low=interval.low * _S_PER_HOUR, high=interval.high * _S_PER_HOUR)


def _days(
    make: Figures, balances: Sequence[Balance], accruals: Mapping[date, Accrual], missing: str | None
) -> tuple[DayRow, ...]:
    """Without anything realised to set against it, no balance but the accrual itself can be told."""
    days = []
    for balance in balances:
        accrual = accruals.get(balance.day)
        why = accrual.why if accrual is not None and accrual.why else missing or _BEFORE
        moves = (balance.opening, balance.released, balance.closing)
        opening, released, closing = (amount(make, None if missing else nano, why=why) for nano in moves)
        days.append(
            DayRow(
                day=balance.day.isoformat(),
                opening=opening,
                accrued=amount(make, balance.accrued, why=why),
                realised=amount(make, None if missing else balance.realised, why=missing),
                released=released,
                closing=closing,
                rates_of=_rates_of(accrual),
            )
        )
    return tuple(days)


def _rates_of(accrual: Accrual | None) -> str:
    if accrual is None:
        return _NOTHING_LENT
    if accrual.usd is None:
        return "none"
    return "earlier days" if accrual.from_earlier_days else "earlier days and this one"


def _by_lease(make: Figures, accruals: Sequence[Accrual], total: int) -> dict[str, Figure]:
    exact: dict[str, Fraction] = {}
    for accrual in accruals:
        for lease_id, usd in (accrual.by_lease or {}).items():
            exact[str(lease_id)] = exact.get(str(lease_id), Fraction(0)) + usd
    return {lease_id: amount(make, nano) for lease_id, nano in sorted(nano_by_key(exact, total).items())}


def _break_even(run: PricedRun) -> Figure:
    """[D] p_D * tau_O (1 - w_O) / (tau_D (1 - w_D)) - m without provision, per borrowed device-hour."""
    borrowed, dedicated = run.tokens["borrowed"], run.tokens["dedicated"]
    own, lent = run.allocation.in_pools("rollout", "train"), run.borrow.borrowed_ns
    own_ns, worked_ns = own.bucket_ns()["rollout"], own.measured_ns()["rollout"]
    if not (lent and own_ns and borrowed.generated and dedicated.useful):
        why = "not enough data: it takes useful tokens on both borrowed and dedicated devices"
        return run.make.money(None, MARGINAL, per="device-hour", why=why)
    m_usd = (run.borrow.usd - run.borrow.terms["provision"].usd) * NS_PER_HOUR / lent
    usd = formulas.break_even_provision(
        p_dedicated=own.amortized_nano_usd()["rollout"] / NANO_USD_PER_USD * NS_PER_HOUR / own_ns,
        m_without_provision=0.0,
        tau_ratio=(borrowed.generated / lent) / (dedicated.generated / worked_ns),
        wasted_borrowed=float(borrowed.wasted_share or 0),
        wasted_dedicated=float(dedicated.wasted_share or 0),
    )
    # The formula takes no m below 0, which less power while lent can bring.
    return run.make.money(Fraction(usd) - m_usd, MARGINAL, per="device-hour", basis=run.borrow.basis)
