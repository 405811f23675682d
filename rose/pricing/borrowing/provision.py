"""Slack taken now and paid for in a later burst: what to provide for it, and what it really cost.

Definitions [D]; a window is `horizon` long, a load bin a fifth of serving load.

- *Burst*: windows of a device in the top fifth in a row, after one in a lower fifth.
- *h(b)*: bursts that began right after a window of bin b, over the time in windows of bin b that another one follows.
  So it is the rate at which, from bin b, load rises to the top fifth within one horizon.
- *E[extra | b]*: mean missed budgets of a burst that began from bin b on a lent device, less the same on one not lent.
- *provision(b)* = h(b) * E[extra | b] * penalty, for each lent device-second in bin b. In the top fifth nothing is
  accrued: the burst is already there, and what it costs is realised.
- *Realised* = what lending cost serving, against time in which leases were withheld at random: see `harm`. Without such
  time it is confounded, and what is shown is the sum over b of N_b * (v_b lent - v_b not lent) * penalty.

A bin with too few windows or bursts takes the figure of all bins together; where that is too little as well there is
not enough data, and nothing is accrued or booked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from typing import Any

import duckdb

from rose.pricing import formulas
from rose.pricing.borrowing import harm
from rose.pricing.borrowing.harm import Harm
from rose.pricing.borrowing.terms import Parts, Stretches, Term, absent, add, in_turn, nano_by_key, term
from rose.pricing.figures import NOT_SET
from rose.pricing.money import NS_PER_S
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import wilson

Row = Mapping[str, Any]

#: Load bins from which a burst can begin.
CALM_BINS = (0, 1, 2, 3)
#: Fewest windows for a hazard, and fewest bursts on each side, lent and not, for the extra misses of one.
WINDOWS_MIN = 30
BURSTS_MIN = 5
HORIZON_NS = 10 * NS_PER_S

NO_PENALTY = f"{NOT_SET}: the price book has no penalty for a missed budget; state one, `violation_usd`, in [lending]"
_NOTHING_TO_COMPARE = "not enough data: no request of the same load arrived while its device was not lent"


# What it cost --------------------------------------------------------------------------------------------------------


def realised(measured: Harm, connection: duckdb.DuckDBPyConnection, stretches: Stretches, book: PriceBook) -> Term:
    """What missed budgets, and latency within them, came to; see `rose.pricing.borrowing.harm`.

    Where that is confounded: the misses alone, against unlent time of the same load, without an interval.
    """
    if not any(penalties(stretches, book)):
        return absent(NO_PENALTY)
    if measured.confounded is None:
        return harm.realised(measured, stretches, book)
    return confounded(rows(connection, "borrowing/violations_by_load"), stretches, book, measured.confounded)


def realised_by_day(
    measured: Harm, connection: duckdb.DuckDBPyConnection, stretches: Stretches, book: PriceBook
) -> dict[date, Fraction]:
    """The same dollars by the UTC day on which the requests arrived."""
    if measured.confounded is None:
        return harm.realised_by_day(measured)
    return confounded_by_day(rows(connection, "borrowing/violations_by_load"), stretches, book)


def confounded(bins: Sequence[Row], stretches: Stretches, book: PriceBook, why: str) -> Term:
    """[D] Sum over load bins of N_lent * (v_lent - v_unlent) * penalty, not clipped at zero, without an interval.

    `bins` are rows of `violations_by_load`. Lent and unlent time differ in more than lending: leases follow load, and
    requests that a lease made late may arrive when it is gone. Requests in a bin that has no unlent ones to compare
    with are left out of the figure, and the explanation says how many.
    """
    per_miss = penalties(stretches, book)
    unlent = _unlent(bins)
    parts: Parts = {}
    extra, counts = Fraction(0), {True: 0, False: 0}
    for row in (row for row in bins if row["lent"]):
        beyond = _beyond(row, unlent)
        counts[beyond is not None] += row["requests"]
        if beyond is not None:
            extra += beyond
            add(parts, row["lease_id"], beyond * per_miss[stretches.of_day(row["day"])])
    penalty_texts = in_turn(f"${float(penalty):g}" for penalty in per_miss)
    return term(
        parts,
        "measured",
        f"{why}; {float(extra):+.1f} missed budgets against unlent time of the same load, {penalty_texts} each; "
        f"{counts[True]:,} lent requests compared, {counts[False]:,} had nothing to compare with",
        no_interval=why,
        missing=_NOTHING_TO_COMPARE if counts[False] and not counts[True] else None,
    )


def confounded_by_day(bins: Sequence[Row], stretches: Stretches, book: PriceBook) -> dict[date, Fraction]:
    """The same dollars by the UTC day on which the requests arrived."""
    per_miss, unlent = penalties(stretches, book), _unlent(bins)
    by_day: dict[date, Fraction] = defaultdict(Fraction)
    for row in bins:
        beyond = _beyond(row, unlent) if row["lent"] else None
        by_day[row["day"]] += (beyond or 0) * per_miss[stretches.of_day(row["day"])]
    return dict(by_day)


def _unlent(bins: Iterable[Row]) -> dict[int, tuple[int, int]]:
    """(requests, misses) of each load bin while not lent."""
    by_load: dict[int, tuple[int, int]] = {}
    for row in bins:
        if not row["lent"] and row["load_bin"] is not None:
            requests, misses = by_load.get(row["load_bin"], (0, 0))
            by_load[row["load_bin"]] = (requests + row["requests"], misses + row["violations"])
    return by_load


def _beyond(row: Row, unlent: Mapping[int, tuple[int, int]]) -> Fraction | None:
    """Misses beyond those of as many unlent requests of the same load."""
    if row["load_bin"] not in unlent:
        return None
    requests, misses = unlent[row["load_bin"]]
    return int(row["violations"]) - Fraction(misses, requests) * int(row["requests"])


def penalties(stretches: Stretches, book: PriceBook) -> list[Fraction]:
    """Dollars of a missed budget in each stretch; 0 where none is set."""
    return [Fraction(book.lending_at(at_ns).violation_usd) for at_ns in stretches.starts_ns]


# What to provide -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """What one load bin says about bursts. None: not enough data, and `why` says of what."""

    hazard_per_s: Fraction | None
    hazard_interval: Interval | None
    extra: Fraction | None
    #: The figures that are of all bins together, since the bin's own data were too few.
    pooled: tuple[str, ...]
    windows: int
    bursts: int
    why: str | None

    @property
    def misses_per_s(self) -> Fraction | None:
        """h(b) * E[extra | b]: missed budgets to expect from each lent device-second."""
        return None if self.hazard_per_s is None or self.extra is None else self.hazard_per_s * self.extra


def rates(risk: Sequence[Row], bursts: Sequence[Row], horizon_ns: int = HORIZON_NS) -> dict[int, Rate]:
    """Hazard and extra misses of each calm bin, from rows of `burst_risk` and `burst_violations`."""
    return {load_bin: _rate_of(load_bin, risk, bursts, horizon_ns) for load_bin in CALM_BINS}


def _rate_of(load_bin: int, risk: Sequence[Row], bursts: Sequence[Row], horizon_ns: int) -> Rate:
    own_risk = [row for row in risk if row["bin"] == load_bin]
    windows, begun = (sum(row[name] for row in own_risk) for name in ("windows", "bursts"))
    pooled: list[str] = []
    hazard, hazard_interval = _hazard(own_risk, horizon_ns)
    if hazard is None:
        hazard, hazard_interval = _hazard(risk, horizon_ns)
        pooled.append("hazard")
    extra = _extra([row for row in bursts if row["bin"] == load_bin])
    if extra is None:
        extra = _extra(bursts)
        pooled.append("extra")
    return Rate(
        hazard_per_s=hazard,
        hazard_interval=hazard_interval,
        extra=extra,
        pooled=tuple(pooled),
        windows=windows,
        bursts=begun,
        why=_why(hazard, extra, risk, bursts),
    )


def _hazard(risk: Sequence[Row], horizon_ns: int) -> tuple[Fraction | None, Interval | None]:
    """Bursts over time at risk, for a second; its interval is Wilson's for the share of windows."""
    windows, begun = (sum(row[name] for row in risk) for name in ("windows", "bursts"))
    if windows < WINDOWS_MIN:
        return None, None
    per_s = Fraction(NS_PER_S, horizon_ns)
    low, high = wilson(begun / windows, windows)
    return Fraction(begun, windows) * per_s, Interval(low=low * float(per_s), high=high * float(per_s))


def _extra(bursts: Sequence[Row]) -> Fraction | None:
    """Mean misses of a burst, lent less not lent. Leases follow load, so no interval of it would be honest."""
    counts, misses = (
        {lent: sum(row[name] for row in bursts if row["lent"] == lent) for lent in (True, False)}
        for name in ("bursts", "misses")
    )
    if min(counts.values()) < BURSTS_MIN:
        return None
    return Fraction(misses[True], counts[True]) - Fraction(misses[False], counts[False])


def _why(hazard: Fraction | None, extra: Fraction | None, risk: Sequence[Row], bursts: Sequence[Row]) -> str | None:
    if hazard is None:
        windows = sum(row["windows"] for row in risk)
        return f"not enough data: {windows} windows below the top fifth of load, and a hazard takes {WINDOWS_MIN}"
    if extra is None:
        lent, unlent = (sum(row["bursts"] for row in bursts if row["lent"] == side) for side in (True, False))
        return (
            f"not enough data: {lent} bursts began on lent devices and {unlent} on devices not lent, and their "
            f"difference takes {BURSTS_MIN} of each"
        )
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Accrual:
    """What was provided for on one UTC day, in exact dollars by lease; None where there is not enough data."""

    day: date
    by_lease: Parts | None
    why: str | None
    lent_ns: int
    #: Lent time in windows whose load is not known, for which nothing can be provided.
    unknown_ns: int
    #: Whether the rates are of earlier days only; if not, those were too few and the day itself is in them.
    from_earlier_days: bool

    @property
    def usd(self) -> Fraction | None:
        return None if self.by_lease is None else sum(self.by_lease.values(), Fraction(0))


def accrue(
    lent: Sequence[Row],
    risk: Sequence[Row],
    bursts: Sequence[Row],
    stretches: Stretches,
    book: PriceBook,
    horizon_ns: int = HORIZON_NS,
) -> list[Accrual]:
    """Provision for every UTC day with lent time, in order; `lent` are rows of `lent_windows`.

    Rates are those that were known when the day began; while earlier days hold too little, the day itself is counted
    in. So no later day changes what was accrued.
    """
    per_miss = penalties(stretches, book)
    by_day: dict[date, list[Row]] = defaultdict(list)
    for row in lent:
        by_day[row["day"]].append(row)
    accruals = []
    for day, own in sorted(by_day.items()):
        known = rates(_until(risk, day), _until(bursts, day), horizon_ns)
        earlier = known[0].why is None
        if not earlier:
            next_day = day + timedelta(days=1)
            known = rates(_until(risk, next_day), _until(bursts, next_day), horizon_ns)
        penalty = per_miss[stretches.of_day(day)]
        # A day at no penalty among others that have one costs nothing; without any, nobody knows what it costs.
        why = NO_PENALTY if not any(per_miss) else known[0].why if penalty else None
        parts: Parts = {}
        for row in own:
            per_s = known[row["bin"]].misses_per_s if row["bin"] in known else None
            add(parts, row["lease_id"], Fraction(row["lent_ns"], NS_PER_S) * (per_s or 0) * penalty)
        accruals.append(
            Accrual(
                day=day,
                by_lease=None if why else parts,
                why=why,
                lent_ns=sum(row["lent_ns"] for row in own),
                unknown_ns=sum(row["lent_ns"] for row in own if row["bin"] is None),
                from_earlier_days=earlier,
            )
        )
    return accruals


def _until(rows: Sequence[Row], day: date) -> list[Row]:
    return [row for row in rows if row["day"] < day]


# How the balance moves -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """One UTC day of the provision, whole nano-dollars; None before the first day with enough data to accrue."""

    day: date
    opening: int | None
    accrued: int | None
    realised: int
    released: int | None
    closing: int | None

    def __post_init__(self) -> None:
        if self.opening is not None and self.accrued is not None and self.released is not None:
            assert self.closing == formulas.provision_closing(self.opening, self.accrued, self.realised, self.released)


def roll_forward(accrued: Mapping[date, Fraction | None], realised: Mapping[date, Fraction]) -> list[Balance]:
    """[D] Opening + accrued - realised - released = closing, day after day, exactly.

    A day's provision is held to the end of the next day, long after its horizon: what no burst used by then is
    released. What was realised beyond the balance stays as a debt. Days before the first accrual have no balance.
    Raises ValueError for a day without an accrual after one that has it.
    """
    days = sorted(accrued.keys() | realised.keys())
    accrued_nano = nano_by_key({day: usd for day, usd in accrued.items() if usd is not None})
    realised_nano = nano_by_key({day: realised.get(day, Fraction(0)) for day in days})
    balances: list[Balance] = []
    opening: int | None = None
    for day in days:
        if accrued.get(day, Fraction(0)) is None or (opening is None and day not in accrued_nano):
            if opening is not None:
                raise ValueError(f"{day} has no accrual, and a day before it has")
            balances.append(
                Balance(day=day, opening=None, accrued=None, realised=realised_nano[day], released=None, closing=None)
            )
            continue
        start = opening or 0
        released = max(0, start - realised_nano[day])
        opening = formulas.provision_closing(start, accrued_nano.get(day, 0), realised_nano[day], released)
        balances.append(
            Balance(
                day=day,
                opening=start,
                accrued=accrued_nano.get(day, 0),
                realised=realised_nano[day],
                released=released,
                closing=opening,
            )
        )
    return balances
