"""The provision for later bursts as tables: its rates, what was accrued and realised, and the balance day by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from fractions import Fraction

from rose.pricing import formulas
from rose.pricing.borrowing import provision as compute
from rose.pricing.borrowing.provision import Accrual, Balance, Rate
from rose.pricing.borrowing.report.marginal import in_all, per_device_hour
from rose.pricing.borrowing.terms import Stretches, nano_by_key
from rose.pricing.figures import MARGINAL, Figure, Figures
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, PricingError
from rose.pricing.query import rows, set_variables
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.table import Row, Section, Table, columns

_S_PER_HOUR = 3600
_DAY_S = 86_400
HORIZON_S = compute.HORIZON_NS // 10**9
#: Two break-evens of the provision for a borrowed device-hour, by what it breaks even against: the device time of the
#: same work at the amortized price of dedicated devices, and what that work would have added to the bill.
BREAK_EVEN_TIME = "break-even provision against device time"
BREAK_EVEN_CASH = "break-even provision against cash"
ACCRUED, REALISED, NOT_PROVIDED, PENALTY = "accrued", "realised", "lent at a load that is not known", "a missed budget"
REALISED_HOURLY, HORIZON = "realised per borrowed device-hour", "length of a window"
_NOTHING_LENT = "nothing was lent"
_NOT_DRAWN = "confounded: leases follow load, and bursts on lent devices are compared with those on others"
_BEFORE = "not enough data up to this day"


def provision(run: PricedRun, *, by_lease: bool = False, horizon_s: int = HORIZON_S) -> Section:
    """Return the provision of a run for windows of `horizon_s`. Raises PricingError for one that divides no day."""
    if horizon_s < 1 or _DAY_S % horizon_s:
        raise PricingError(f"a horizon must be whole seconds that divide a day, such as 10 or 60; got {horizon_s}")
    horizon_ns = horizon_s * 10**9
    make, term = run.make, run.borrow.terms["provision"]
    stretches = Stretches.over(run.book, run.allocation.period_ns)
    set_variables(run.connection, run_id=run.run.run_id, horizon_ns=horizon_ns, by_lease=by_lease)
    risk, bursts, lent = (
        rows(run.connection, f"borrowing/{name}") for name in ("burst_risk", "burst_violations", "lent_windows")
    )
    accruals = compute.accrue(lent, risk, bursts, stretches, run.book, horizon_ns)
    realised = compute.realised_by_day(run.borrow.harm, run.connection, stretches, run.book)
    per_miss = compute.penalties(stretches, run.book)
    penalty = per_miss[-1] if any(per_miss) else None
    unknown = term.unknown
    balances = compute.roll_forward({one.day: one.usd for one in accruals}, {} if unknown else realised)
    known = [balance.accrued for balance in balances if balance.accrued is not None]
    whole = in_all(make, term)
    hourly = per_device_hour(make, run.borrow, "provision")
    accrued = make.amount(sum(known) if known else None, MARGINAL, why=_why_none(accruals))
    parts = {
        "rates": Table(
            title="Bursts, by fifth of serving load",
            view=MARGINAL,
            stamp=run.stamp,
            columns=columns(
                "load",
                "windows",
                "bursts",
                "bursts an hour",
                "extra misses of a burst",
                "misses a lent device-hour",
                "provision a lent device-hour",
                "pooled",
                text=("pooled",),
            ),
            rows=tuple(
                _rate(make, load_bin, rate, penalty)
                for load_bin, rate in compute.rates(risk, bursts, horizon_ns).items()
            ),
            notes=("A burst is a rise into the top fifth. Pooled: figures of all fifths, since its own are too few.",),
        ),
        "totals": Table(
            title="Provided for, and what it came to",
            view=MARGINAL,
            stamp=run.stamp,
            columns=columns("what", "value", "rests on", text=("rests on",)),
            rows=(
                (ACCRUED, accrued, "rates known when each day began, times lent time"),
                (REALISED, whole, "" if term.explained == whole.text else term.explained),
                (REALISED_HOURLY, hourly, ""),
                (BREAK_EVEN_TIME, _break_even(run), "for a borrowed device-hour; dedicated ones, amortized"),
                (NOT_PROVIDED, make.number(sum(one.unknown_ns for one in accruals), "ns"), "nothing is provided for"),
                (
                    PENALTY,
                    make.money(penalty, MARGINAL, per="missed budget", basis="price book", why=compute.NO_PENALTY),
                    "price book",
                ),
                (HORIZON, make.number(horizon_ns, "ns"), ""),
            ),
            notes=(f"The {BREAK_EVEN_CASH} is another figure: the comparison with dedicated devices has it.",),
        ),
        "days": Table(
            title="Roll-forward by UTC day",
            view=MARGINAL,
            stamp=run.stamp,
            columns=columns(
                "day", "opening", "accrued", "realised", "released", "closing", "rates of", text=("rates of",)
            ),
            rows=_days(make, balances, {one.day: one for one in accruals}, unknown),
            notes=(
                "Opening + accrued - realised - released = closing. A day's provision is held to the end of the next.",
            ),
        ),
    }
    if by_lease and known:
        parts["leases"] = Table(
            title="Accrued by lease",
            view=MARGINAL,
            stamp=run.stamp,
            columns=columns("lease", "accrued"),
            rows=_by_lease(make, accruals, sum(known)),
        )
    return Section(parts)


def _why_none(accruals: Sequence[Accrual]) -> str | None:
    if not accruals:
        return _NOTHING_LENT
    return accruals[-1].why if all(accrual.usd is None for accrual in accruals) else None


def _rate(make: Figures, load_bin: int, rate: Rate, penalty: Fraction | None) -> Row:
    """How often a burst follows at a load, what it costs, and what to provide for a lent hour."""
    per_hour = None if rate.hazard_per_s is None else float(rate.hazard_per_s) * _S_PER_HOUR
    misses = None if rate.misses_per_s is None else rate.misses_per_s * _S_PER_HOUR
    extra = None if rate.extra is None else float(rate.extra)
    return (
        f"{load_bin * 20} to {load_bin * 20 + 20}%",
        make.number(rate.windows, "count"),
        make.number(rate.bursts, "count"),
        make.measure(per_hour, why=rate.why, interval=_hourly(rate.hazard_interval)),
        make.measure(extra, why=rate.why, no_interval=_NOT_DRAWN),
        make.measure(None if misses is None else float(misses), why=rate.why),
        make.money(
            None if misses is None or penalty is None else misses * penalty,
            MARGINAL,
            per="device-hour",
            why=rate.why or compute.NO_PENALTY,
        ),
        " and ".join(rate.pooled) if rate.why is None else "",
    )


def _hourly(interval: Interval | None) -> Interval | None:
    """An interval of a second, for an hour."""
    if interval is None or interval.high is None:
        return None
    return Interval(low=interval.low * _S_PER_HOUR, high=interval.high * _S_PER_HOUR)


def _days(
    make: Figures, balances: Sequence[Balance], accruals: Mapping[date, Accrual], missing: str | None
) -> tuple[Row, ...]:
    """Without anything realised to set against it, no balance but the accrual itself can be told."""
    days = []
    for balance in balances:
        accrual = accruals.get(balance.day)
        why = accrual.why if accrual is not None and accrual.why else missing or _BEFORE
        moves = (balance.opening, balance.released, balance.closing)
        opening, released, closing = (make.amount(None if missing else nano, MARGINAL, why=why) for nano in moves)
        accrued = make.amount(balance.accrued, MARGINAL, why=why)
        realised = make.amount(None if missing else balance.realised, MARGINAL, why=missing)
        days.append((balance.day.isoformat(), opening, accrued, realised, released, closing, _rates_of(accrual)))
    return tuple(days)


def _rates_of(accrual: Accrual | None) -> str:
    if accrual is None:
        return _NOTHING_LENT
    if accrual.usd is None:
        return "none"
    return "earlier days" if accrual.from_earlier_days else "earlier days and this one"


def _by_lease(make: Figures, accruals: Sequence[Accrual], total: int) -> tuple[tuple[str, Figure], ...]:
    exact: dict[str, Fraction] = {}
    for accrual in accruals:
        for lease_id, usd in (accrual.by_lease or {}).items():
            exact[str(lease_id)] = exact.get(str(lease_id), Fraction(0)) + usd
    return tuple((key, make.amount(nano, MARGINAL)) for key, nano in sorted(nano_by_key(exact, total).items()))


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
