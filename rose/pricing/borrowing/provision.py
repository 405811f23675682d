"""Dollars set aside (the provision) for bursts of serving load that follow lending, and the cost that lending really
caused (docs/pricing.md). A window is `HORIZON_NS` long. A load bin is a fifth of the range of serving load."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction

from rose.pricing import formulas
from rose.pricing.borrowing.marginal_tables import in_all, per_device_hour
from rose.pricing.figures import MARGINAL, Figure, Figures
from rose.pricing.marginal_cost.missed_budgets import NO_PENALTY, penalties
from rose.pricing.marginal_cost.terms import Row, Stretches, nano_by_key
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, NS_PER_S, nano_usd_of
from rose.pricing.query import rows, set_variables
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import wilson
from rose.pricing.table import Row as Cells
from rose.pricing.table import Section, report_table

CALM_BINS = (0, 1, 2, 3)  #: Load bins from which a burst can begin.
WINDOWS_MIN = 30  #: Fewest windows for a hazard.
BURSTS_MIN = 5  #: Fewest bursts on each side, lent and not, for the extra misses of one.
HORIZON_NS = 10 * NS_PER_S

_NOTHING_LENT = "nothing was lent"
_NOT_DRAWN = "confounded: leases follow load, and bursts on lent devices are compared with those on others"
#: Provision per borrowed device-hour that equals the amortized cost of dedicated devices.
BREAK_EVEN_TIME = "break-even provision against device time"
ACCRUED, REALISED, NOT_PROVIDED, PENALTY = "accrued", "realised", "lent at a load that is not known", "a missed budget"


@dataclass(frozen=True, slots=True)
class Rate:
    """Per load bin: how often a burst begins, and how many more latency budgets a burst misses because of lending
    (`extra`). If a figure is None, `why` says why."""

    hazard_per_s: Fraction | None
    hazard_interval: Interval | None
    extra: Fraction | None
    pooled: tuple[str, ...]  #: Figures from all bins, because the bin has too few data.
    windows: int
    bursts: int
    why: str | None

    @property
    def misses_per_s(self) -> Fraction | None:
        """Return the expected missed budgets per lent device-second: h(b) * E[extra | b]. For load bin b, h(b) is
        `hazard_per_s` and E[extra | b] is `extra`."""
        return None if self.hazard_per_s is None or self.extra is None else self.hazard_per_s * self.extra


def rates(risk: Sequence[Row], bursts: Sequence[Row]) -> dict[int, Rate]:
    by_bin = {}
    for load_bin in CALM_BINS:
        own_risk = [row for row in risk if row["bin"] == load_bin]
        own_extra = _extra([row for row in bursts if row["bin"] == load_bin])
        own_hazard = _hazard(own_risk)
        hazard_per_s, interval = _hazard(risk) if own_hazard[0] is None else own_hazard
        extra = _extra(bursts) if own_extra is None else own_extra
        pooled = tuple(name for name, own in (("hazard", own_hazard[0]), ("extra", own_extra)) if own is None)
        windows, begun = (sum(row[name] for row in own_risk) for name in ("windows", "bursts"))
        why = _why(hazard_per_s, extra, risk, bursts)
        by_bin[load_bin] = Rate(hazard_per_s, interval, extra, pooled, windows, begun, why)
    return by_bin


def _hazard(risk: Sequence[Row]) -> tuple[Fraction, Interval] | tuple[None, None]:
    windows, begun = (sum(row[name] for row in risk) for name in ("windows", "bursts"))
    if windows < WINDOWS_MIN:
        return None, None
    horizon_s = HORIZON_NS // NS_PER_S
    low, high = wilson(begun / windows, windows)
    return Fraction(begun, windows * horizon_s), Interval(low=low / horizon_s, high=high / horizon_s)


def _extra(bursts: Sequence[Row]) -> Fraction | None:
    """Return how many more budgets a burst misses on a lent device than on another device, or None for too few bursts.
    The figure has no interval: leases depend on load, so bursts on lent devices are not a random sample."""
    counts, misses = (
        {lent: sum(row[name] for row in bursts if row["lent"] == lent) for lent in (True, False)}
        for name in ("bursts", "misses")
    )
    if min(counts.values()) < BURSTS_MIN:
        return None
    return Fraction(misses[True], counts[True]) - Fraction(misses[False], counts[False])


def _why(hazard: object, extra: object, risk: Sequence[Row], bursts: Sequence[Row]) -> str | None:
    if hazard is None:
        windows = sum(row["windows"] for row in risk)
        return f"not enough data: need {WINDOWS_MIN} windows below the top fifth of load, have {windows}"
    if extra is None:
        lent, unlent = (sum(row["bursts"] for row in bursts if row["lent"] == side) for side in (True, False))
        need = f"need {BURSTS_MIN} bursts that began on lent devices and as many on others"
        return f"not enough data: {need}, have {lent} and {unlent}"
    return None


@dataclass(frozen=True, slots=True)
class Accrual:
    day: date
    usd: Fraction | None
    why: str | None
    unknown_ns: int  #: Lent time at an unknown load, which gets no provision.
    from_earlier_days: bool  #: Whether the rates are of earlier days only; otherwise they include this day.


def accrue(lent: Sequence[Row], risk: Sequence[Row], bursts: Sequence[Row], stretches: Stretches) -> list[Accrual]:
    """Return the provision of each UTC day that has lent time, from rows of `bursts.sql`. A day uses the rates of
    earlier days. If these days have too few data, the day's own data are added. Later days never change a provision."""
    per_miss = penalties(stretches)
    by_day: dict[date, list[Row]] = defaultdict(list)
    for row in lent:
        by_day[row["day"]].append(row)
    accruals = []
    for day, own in sorted(by_day.items()):
        known = rates(_until(risk, day), _until(bursts, day))
        earlier = known[0].why is None
        if not earlier:
            next_day = day + timedelta(days=1)
            known = rates(_until(risk, next_day), _until(bursts, next_day))
        penalty = per_miss[stretches.of_day(day)]
        # Without a penalty a day costs nothing if others have one; otherwise its cost is unknown.
        why = NO_PENALTY if not any(per_miss) else known[0].why if penalty else None
        lent_s = ((known[row["bin"]], Fraction(row["lent_ns"], NS_PER_S)) for row in own if row["bin"] in known)
        misses = sum((seconds * (rate.misses_per_s or 0) for rate, seconds in lent_s), Fraction(0))
        unknown_ns = sum(row["lent_ns"] for row in own if row["bin"] is None)
        accruals.append(Accrual(day, None if why else misses * penalty, why, unknown_ns, earlier))
    return accruals


def _until(rows: Sequence[Row], day: date) -> list[Row]:
    return [row for row in rows if row["day"] < day]


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance of one UTC day, in whole nano-dollars. Before the first accrual, only `realised` has a value."""

    day: date
    opening: int | None
    accrued: int | None
    realised: int
    released: int | None
    closing: int | None


def roll_forward(accrued: Mapping[date, Fraction | None], realised: Mapping[date, Fraction]) -> list[Balance]:
    """[D] Return each day's balance: opening + accrued - realised - released = closing. What is left of a provision is
    released at the end of the next day; a shortfall stays as debt. Raises ValueError if an accrual is missing."""
    days = sorted(accrued.keys() | realised.keys())
    accrued_nano = nano_by_key({day: usd for day, usd in accrued.items() if usd is not None})
    realised_nano = nano_by_key({day: realised.get(day, Fraction(0)) for day in days})
    balances: list[Balance] = []
    closing: int | None = None
    for day in days:
        if accrued.get(day, Fraction(0)) is None or (closing is None and day not in accrued_nano):
            if closing is not None:
                raise ValueError(f"{day} has no accrual, but an earlier day has one")
            balances.append(Balance(day, None, None, realised_nano[day], None, None))
            continue
        opening, new = closing or 0, accrued_nano.get(day, 0)
        released = max(0, opening - realised_nano[day])
        closing = opening + new - realised_nano[day] - released
        balances.append(Balance(day, opening, new, realised_nano[day], released, closing))
    return balances


def provision(run: PricedRun) -> Section:
    make, term = run.make, run.borrow.terms["provision"]
    stretches = Stretches.over(run.book, run.allocation.period_ns)
    set_variables(run.connection, run_id=run.run.run_id, horizon_ns=HORIZON_NS)
    rows(run.connection, "borrowing/window_pieces")
    counted = rows(run.connection, "borrowing/bursts")
    risk, bursts, lent = ([row for row in counted if row["what"] == what] for what in ("risk", "burst", "lent"))
    accruals = {one.day: one for one in accrue(lent, risk, bursts, stretches)}
    realised = in_all(make, term, nano_usd_of(term.usd))
    realised_usd = {} if term.unknown else run.borrow.realised_usd
    balances = roll_forward({day: one.usd for day, one in accruals.items()}, realised_usd)
    known = [balance.accrued for balance in balances if balance.accrued is not None]
    why = [*accruals.values()][-1].why if accruals else _NOTHING_LENT
    per_miss = penalties(stretches)
    penalty = per_miss[-1] if any(per_miss) else None
    per_penalty = make.money(penalty, MARGINAL, per="missed budget", basis="price book", why=NO_PENALTY)
    unknown_ns = sum(one.unknown_ns for one in accruals.values())
    parts = {
        "rates": report_table(
            run.stamp,
            "Bursts, by fifth of serving load",
            "load | windows | bursts | bursts an hour | extra misses of a burst | misses per lent device-hour | "
            "provision per lent device-hour | pooled",
            (_rate(make, load_bin, rate, penalty) for load_bin, rate in rates(risk, bursts).items()),
            view=MARGINAL,
            text=("pooled",),
            notes=(
                f"A burst is a rise into the top fifth, between windows of {HORIZON_NS // NS_PER_S} s. Pooled: "
                "figures of all fifths, since this fifth has too few of its own.",
            ),
        ),
        "totals": report_table(
            run.stamp,
            "Provision and realised cost",
            "what | value | rests on",
            (
                (
                    ACCRUED,
                    make.amount(sum(known) if known else None, MARGINAL, why=why),
                    "rates known when each day began, times lent time",
                ),
                (REALISED, realised, "" if term.explained == term.unknown else term.explained),
                (f"{REALISED} per borrowed device-hour", per_device_hour(make, run.borrow, "provision"), ""),
                (BREAK_EVEN_TIME, _break_even(run), "for a borrowed device-hour; dedicated ones, amortized"),
                (NOT_PROVIDED, make.number(unknown_ns, "ns"), "nothing is provided for"),
                (PENALTY, per_penalty, "price book"),
            ),
            view=MARGINAL,
            text=("rests on",),
        ),
        "days": report_table(
            run.stamp,
            "Roll-forward by UTC day",
            "day | opening | accrued | realised | released | closing | rates of",
            (_day(make, balance, accruals.get(balance.day), term.unknown) for balance in balances),
            view=MARGINAL,
            text=("rates of",),
            notes=(
                "Opening + accrued - realised - released = closing. A day's provision is held until the next day ends.",
            ),
        ),
    }
    return Section(parts)


def _rate(make: Figures, load_bin: int, rate: Rate, penalty: Fraction | None) -> Cells:
    hourly, extra, misses = (
        None if value is None else value * scale
        for value, scale in ((rate.hazard_per_s, 3600), (rate.extra, 1), (rate.misses_per_s, 3600))
    )
    interval = None if rate.hazard_interval is None else rate.hazard_interval.over(1 / 3600)
    provided = None if misses is None or penalty is None else misses * penalty
    return (
        f"{load_bin * 20} to {load_bin * 20 + 20}%",
        make.number(rate.windows, "count"),
        make.number(rate.bursts, "count"),
        make.measure(hourly, why=rate.why, interval=interval),
        make.measure(extra, why=rate.why, no_interval=_NOT_DRAWN),
        make.measure(misses, why=rate.why),
        make.money(provided, MARGINAL, per="device-hour", why=rate.why or NO_PENALTY),
        " and ".join(rate.pooled) if rate.why is None else "",
    )


def _day(make: Figures, balance: Balance, accrual: Accrual | None, missing: str | None) -> Cells:
    why = accrual.why if accrual is not None and accrual.why else missing or "not enough data up to this day"

    def moved(nano: int | None) -> Figure:
        return make.amount(None if missing else nano, MARGINAL, why=why)

    return (
        balance.day.isoformat(),
        moved(balance.opening),
        make.amount(balance.accrued, MARGINAL, why=why),
        make.amount(None if missing else balance.realised, MARGINAL, why=missing),
        moved(balance.released),
        moved(balance.closing),
        _NOTHING_LENT
        if accrual is None
        else "none"
        if accrual.usd is None
        else f"earlier days{'' if accrual.from_earlier_days else ' and this one'}",
    )


def _break_even(run: PricedRun) -> Figure:
    """[D] Return the provision per borrowed device-hour at which borrowing costs as much as dedicated devices."""
    borrowed, dedicated = run.tokens["borrowed"], run.tokens["dedicated"]
    own, lent = run.allocation.in_pools("rollout", "train"), run.borrow.borrowed_ns
    own_ns, worked_ns = own.bucket_ns()["rollout"], own.measured_ns()["rollout"]
    if not (lent and own_ns and borrowed.generated and dedicated.useful):
        why = "not enough data: need useful tokens on both borrowed and dedicated devices"
        return run.make.money(None, MARGINAL, per="device-hour", why=why)
    m_usd = (run.borrow.usd - run.borrow.terms["provision"].usd) * NS_PER_HOUR / lent
    usd = formulas.break_even_provision(
        p_dedicated=own.amortized_nano_usd()["rollout"] / NANO_USD_PER_USD * NS_PER_HOUR / own_ns,
        m_without_provision=float(m_usd),
        tau_ratio=(borrowed.generated / lent) / (dedicated.generated / worked_ns),
        wasted_borrowed=float(borrowed.wasted_share or 0),
        wasted_dedicated=float(dedicated.wasted_share or 0),
    )
    return run.make.money(Fraction(usd), MARGINAL, per="device-hour", basis=run.borrow.basis)
