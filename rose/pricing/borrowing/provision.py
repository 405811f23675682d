"""Slack taken now and paid for in a later burst: what to provide for it, and what it really cost.

Definitions [D]; a window is `horizon` long, a load bin a fifth of serving load.

- *Burst*: windows of a device in the top fifth in a row, after one in a lower fifth.
- *h(b)*: bursts that began right after a window of bin b, over the time in windows of bin b that another one follows.
  So it is the rate at which, from bin b, load rises to the top fifth within one horizon.
- *E[extra | b]*: mean missed budgets of a burst that began from bin b on a lent device, less the same on one not lent.
- *provision(b)* = h(b) * E[extra | b] * penalty, for each lent device-second in bin b. In the top fifth nothing is
  accrued: the burst is already there, and what it costs is realised.
- *Realised* = sum over b of N_b * (v_b lent - v_b not lent) * penalty over all requests, not clipped at zero.

A bin with too few windows or bursts takes the figure of all bins together; where that is too little as well there is
not enough data, and nothing is accrued or booked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

from rose.pricing import formulas
from rose.pricing.borrowing.terms import Parts, Stretches, Term, add, nano_by_key, range_of, term
from rose.pricing.money import NS_PER_S
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import (
    Clusters,
    Estimate,
    effective_trials,
    mean,
    ratio_variance,
    total,
    welch,
    wilson,
)

Row = Mapping[str, Any]

#: Load bins from which a burst can begin.
CALM_BINS = (0, 1, 2, 3)
#: Fewest windows for a hazard, and fewest bursts on each side, lent and not, for the extra misses of one.
WINDOWS_MIN = 30
BURSTS_MIN = 5
HORIZON_NS = 10 * NS_PER_S

_NO_PENALTY = "the price book sets no penalty for a missed budget"
_NOTHING_TO_COMPARE = "not enough data: no request of the same load arrived while its device was not lent"


# What it cost --------------------------------------------------------------------------------------------------------


def confounded(taken_back: int) -> str | None:
    """Why lent time and the rest cannot be compared honestly: leases were taken back as serving came under load.

    The requests that then come late arrive while their device is not lent any more, and make what lending is compared
    with worse.
    """
    if not taken_back:
        return None
    leases = "a lease was" if taken_back == 1 else f"{taken_back:,} leases were"
    return f"confounded: {leases} taken back as load rose, so time after them is no fair comparison"


def realised(
    bins: Sequence[Row], spread: Sequence[Row], stretches: Stretches, book: PriceBook, *, taken_back: int = 0
) -> Term:
    """[D] Sum over load bins of N_lent * (v_lent - v_unlent) * penalty, not clipped at zero.

    `bins` are rows of `violations_by_load`, `spread` of `violation_spread`. The interval is Newcombe's for a difference
    of rates, with the number of requests cut by how far misses come together. Requests in a bin that has no unlent ones
    to compare with are left out of the figure, and the explanation says how many; the interval has room for any rate
    that their load may have without lending. There is none where leases were taken back under load (`taken_back`).
    """
    penalties = _penalties(stretches, book)
    if not any(penalties):
        return term({}, "price book", _NO_PENALTY)
    unlent = _unlent(bins)
    parts: Parts = {}
    extra, counts = Fraction(0), {True: 0, False: 0}
    usd_at_stake: dict[int, Fraction] = defaultdict(Fraction)
    apart = [0.0, 0.0]
    lent: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in (row for row in bins if row["lent"]):
        beyond = _beyond(row, unlent)
        counts[beyond is not None] += row["requests"]
        penalty = penalties[_segment(row["day"], stretches)]
        if beyond is None:
            apart[0] += float(penalty * (row["violations"] - row["requests"]))
            apart[1] += float(penalty * row["violations"])
        else:
            extra += beyond
            add(parts, row["lease_id"], beyond * penalty)
            usd_at_stake[row["load_bin"]] += row["requests"] * penalty
            requests, misses = lent[row["load_bin"]]
            lent[row["load_bin"]] = (requests + row["requests"], misses + row["violations"])
    clusters = {(row["load_bin"], row["lent"]): Clusters.of(row) for row in spread}
    each = " then ".join(dict.fromkeys(f"${float(penalty):g}" for penalty in penalties))
    compared = _difference(
        (counted, clusters.get((load_bin, is_lent)), float(at_stake) * (1 if is_lent else -1))
        for load_bin, at_stake in usd_at_stake.items()
        for is_lent, counted in ((True, lent[load_bin]), (False, unlent[load_bin]))
    )
    return term(
        parts,
        "measured",
        f"{float(extra):+.1f} missed budgets against unlent time of the same load, {each} each; "
        f"{counts[True]:,} lent requests compared, {counts[False]:,} had nothing to compare with",
        interval=_with_the_rest(parts, compared, apart, stretches, book),
        no_interval=confounded(taken_back),
        missing=_NOTHING_TO_COMPARE if counts[False] and not counts[True] else None,
    )


def _with_the_rest(
    parts: Parts, compared: Interval | None, apart: Sequence[float], stretches: Stretches, book: PriceBook
) -> Interval | None:
    """The interval with what could not be compared, of which only ends are known, and the book's range of a penalty."""
    if compared is None or compared.high is None:
        return None
    usd = float(sum(parts.values(), Fraction(0)))
    estimate = Estimate(usd, compared.low, compared.high).widened(*range_of(map(book.lending_at, stretches.starts_ns)))
    return total([estimate, Estimate(0.0, *apart)])


def realised_by_day(bins: Sequence[Row], stretches: Stretches, book: PriceBook) -> dict[date, Fraction]:
    """The same dollars by the UTC day on which the requests arrived."""
    penalties, unlent = _penalties(stretches, book), _unlent(bins)
    by_day: dict[date, Fraction] = defaultdict(Fraction)
    for row in bins:
        beyond = _beyond(row, unlent) if row["lent"] else None
        by_day[row["day"]] += (beyond or 0) * penalties[_segment(row["day"], stretches)]
    return dict(by_day)


def _unlent(bins: Iterable[Row]) -> dict[int, tuple[int, int]]:
    """(requests, misses) of each load bin while not lent."""
    found: dict[int, tuple[int, int]] = {}
    for row in bins:
        if not row["lent"] and row["load_bin"] is not None:
            requests, misses = found.get(row["load_bin"], (0, 0))
            found[row["load_bin"]] = (requests + row["requests"], misses + row["violations"])
    return found


def _beyond(row: Row, unlent: Mapping[int, tuple[int, int]]) -> Fraction | None:
    """Misses beyond those of as many unlent requests of the same load."""
    if row["load_bin"] not in unlent:
        return None
    requests, misses = unlent[row["load_bin"]]
    return int(row["violations"]) - Fraction(misses, requests) * int(row["requests"])


def _difference(sides: Iterable[tuple[tuple[int, int], Clusters | None, float]]) -> Interval | None:
    """Interval of a sum of rates, from (requests, misses), their clusters and what each rate is multiplied by."""
    parts = list(sides)
    freedom = welch(
        (factor**2 * variance, clusters.count - 1)
        for (requests, misses), clusters, factor in parts
        if clusters is not None and (variance := ratio_variance(misses, requests, clusters)) is not None
    )
    return total(_rate(counted, clusters, freedom).times(factor) for counted, clusters, factor in parts)


def _rate(counted: tuple[int, int], clusters: Clusters | None, freedom: float | None) -> Estimate:
    requests, misses = counted
    trials = float(requests) if clusters is None else effective_trials(misses, requests, clusters, freedom)
    return Estimate(misses / requests, *wilson(misses / requests, trials))


def _penalties(stretches: Stretches, book: PriceBook) -> list[Fraction]:
    return [Fraction(book.lending_at(at_ns).violation_usd) for at_ns in stretches.starts_ns]


def _segment(day: date, stretches: Stretches) -> int:
    return stretches.of(int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * NS_PER_S)


# What to provide -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """What one load bin says about bursts. None: not enough data, and `why` says of what."""

    hazard_per_s: Fraction | None
    hazard_interval: Interval | None
    extra: Fraction | None
    extra_interval: Interval | None
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
    extra, extra_interval = _extra([row for row in bursts if row["bin"] == load_bin])
    if extra is None:
        extra, extra_interval = _extra(bursts)
        pooled.append("extra")
    return Rate(
        hazard_per_s=hazard,
        hazard_interval=hazard_interval,
        extra=extra,
        extra_interval=extra_interval,
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


def _extra(bursts: Sequence[Row]) -> tuple[Fraction | None, Interval | None]:
    """Mean misses of a burst, lent less not lent; the interval takes bursts as independent."""
    counts, misses, squares = (
        {lent: sum(row[name] for row in bursts if row["lent"] == lent) for lent in (True, False)}
        for name in ("bursts", "misses", "squares")
    )
    if min(counts.values()) < BURSTS_MIN:
        return None, None
    mean_of = {lent: Fraction(misses[lent], counts[lent]) for lent in counts}
    variances = [
        (float(squares[lent] - mean_of[lent] * misses[lent]) / (n - 1) / n, n - 1) for lent, n in counts.items()
    ]
    difference = mean_of[True] - mean_of[False]
    # Bursts that all missed as much, most often nothing, do not say how far others will lie from them.
    if not all(variance for variance, _ in variances):
        return difference, None
    return difference, total([mean(float(difference), variances)])


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
    lent: Sequence[Row], risk: Sequence[Row], bursts: Sequence[Row], stretches: Stretches, book: PriceBook,
    horizon_ns: int = HORIZON_NS,
) -> list[Accrual]:  # fmt: skip
    """Provision for every UTC day with lent time, in order; `lent` are rows of `lent_windows`.

    Rates are those that were known when the day began; while earlier days hold too little, the day itself is counted
    in. So no later day changes what was accrued.
    """
    penalties = _penalties(stretches, book)
    by_day: dict[date, list[Row]] = defaultdict(list)
    for row in lent:
        by_day[row["day"]].append(row)
    found = []
    for day, own in sorted(by_day.items()):
        known = rates(_until(risk, day), _until(bursts, day), horizon_ns)
        earlier = known[0].why is None
        if not earlier:
            next_day = day + timedelta(days=1)
            known = rates(_until(risk, next_day), _until(bursts, next_day), horizon_ns)
        penalty = penalties[_segment(day, stretches)]
        why = known[0].why if penalty else None
        parts: Parts = {}
        for row in own:
            per_s = known[row["bin"]].misses_per_s if row["bin"] in known else None
            add(parts, row["lease_id"], Fraction(row["lent_ns"], NS_PER_S) * (per_s or 0) * penalty)
        found.append(
            Accrual(
                day=day,
                by_lease=None if why else parts,
                why=why,
                lent_ns=sum(row["lent_ns"] for row in own),
                unknown_ns=sum(row["lent_ns"] for row in own if row["bin"] is None),
                from_earlier_days=earlier,
            )
        )
    return found


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
    found: list[Balance] = []
    opening: int | None = None
    for day in days:
        if accrued.get(day, Fraction(0)) is None or (opening is None and day not in accrued_nano):
            if opening is not None:
                raise ValueError(f"{day} has no accrual, and a day before it has")
            found.append(
                Balance(
                    day=day, opening=None, accrued=None, realised=realised_nano[day], released=None, closing=None
                )
            )  # fmt: skip
            continue
        start = opening or 0
        released = max(0, start - realised_nano[day])
        opening = formulas.provision_closing(start, accrued_nano.get(day, 0), realised_nano[day], released)
        found.append(
            Balance(
                day=day, opening=start, accrued=accrued_nano.get(day, 0), realised=realised_nano[day],
                released=released, closing=opening,
            )
        )  # fmt: skip
    return found
