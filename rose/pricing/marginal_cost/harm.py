"""What lending costs serving. For each window of time, a random draw decides whether leases are withheld. Withheld
windows are compared with all other drawn windows, called lent time. Lent time includes windows without a lease, because
a lease may end early because of lending (docs/pricing.md)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fractions import Fraction

import duckdb

from rose.pricing.marginal_cost.terms import Basis, Row, Stretches, Term, absent, by_rate, in_turn, range_of
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR
from rose.pricing.price_books.entries import Entry, Lending
from rose.pricing.query import rows, set_variables
from rose.pricing.stats import holdout
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.holdout import Stratum
from rose.pricing.stats.uncertainty import Estimate, total

_MILLION = 10**6
_NEVER = "confounded: leases were never withheld at random, so effects of lending and of load cannot be separated"
_INTERFERENCE = "interference_usd_per_device_hour"


@dataclass(frozen=True, kw_only=True, slots=True)
class Harm:
    confounded: str | None = None
    not_random: str | None = None  #: Why the windows are no random sample, for requests or for power.
    windows: int = 0
    withheld: int = 0
    sums: Sequence[Row] = ()  #: Rows of `borrowing/holdout_sums`.
    clusters: Sequence[Row] = ()  #: Rows of `borrowing/holdout_clusters`.
    strata: Mapping[str, Mapping[str, Stratum]] = field(default_factory=dict)  #: By measure with enough windows.


def measure(connection: duckdb.DuckDBPyConnection, lending: Sequence[Lending]) -> Harm:
    """Compare a run's withheld windows with its other windows. If `lending` has no entry, a late request costs $0."""
    (drawn,) = rows(connection, "borrowing/holdout_windows")
    why = _not_random(drawn)
    harm = Harm(confounded=why, not_random=why, windows=drawn["windows"], withheld=drawn["withheld"])
    if why is not None:
        return harm
    set_variables(
        connection,
        penalty_nano=[round(Fraction(entry.violation_usd) * NANO_USD_PER_USD) for entry in lending] or [0],
        curve_at=[[float(share) for share, _ in entry.latency_usd or ()] for entry in lending] or [[]],
        curve_nano=[[float(usd * NANO_USD_PER_USD) for _, usd in entry.latency_usd or ()] for entry in lending] or [[]],
    )
    clusters = rows(connection, "borrowing/holdout_clusters")
    strata = {
        name: compared
        for name in ("cost", "misses", "cache", "busy")
        if (compared := holdout.strata([row for row in clusters if row["measure"] == name])) is not None
    }
    if "cost" not in strata:
        windows = sum(row["clusters"] for row in clusters if row["measure"] == "cost" and row["withheld"])
        return replace(harm, confounded=f"confounded: requests came in {holdout.too_few(windows)}")
    return replace(harm, sums=rows(connection, "borrowing/holdout_sums"), clusters=clusters, strata=strata)


def _not_random(drawn: Row) -> str | None:
    if not drawn["withheld"]:
        return _NEVER
    windows, withheld, why = f"{drawn['windows']:,}", f"{drawn['withheld']:,}", None
    if otherwise := drawn["drawn_otherwise"]:
        why = (
            f"{otherwise:,} of {windows} windows are not as their seed draws them, so they were not withheld at random"
        )
    elif len(drawn["settings"]) > 1:
        why = f"the holdout changed within the run, and load may have changed with it: {'; '.join(drawn['settings'])}"
    elif lent := drawn["lent_windows"]:
        why = f"a lease was in force in {lent:,} of {withheld} windows in which leases were to be withheld"
    elif shared := drawn["shared_devices"]:
        met = "which of these a request met was not drawn at random"
        why = f"other runs borrowed {shared:,} of the run's devices in its time there, and {met}"
    return why and f"confounded: {why}"


def realised(harm: Harm, stretches: Stretches) -> Term:
    """Return the cost of missed budgets and latency in lent time, minus the cost that withheld windows predict."""
    compared, lending = harm.strata["cost"], stretches.lending
    # The curve never exceeds the penalty.
    bound = float(max(entry.violation_usd for entry in lending)) * NANO_USD_PER_USD
    missed = list(_beyond(harm, "cost", "misses", "requests"))
    extra = sum((beyond for _, beyond in missed), Fraction(0))
    counted = sum(row["requests"] for row, _ in missed)
    apart = sum(row["requests"] for row in harm.sums if row["withheld"] is None)
    rates = in_turn(f"${float(entry.violation_usd):g}" for entry in lending)
    curve = ", latency within the budget by the book's curve" if any(entry.latency_usd for entry in lending) else ""
    windows = sum(part.withheld.clusters.count for part in compared.values())
    explained = f"{float(extra):+.1f} missed budgets against {windows:,} windows in which leases were withheld at "
    explained += f"random, {rates} each{curve}; {counted:,} requests compared"
    explained += f", {apart:,} in no window that was drawn" if apart else ""
    explained += holdout.would_tell(holdout.more_windows(compared, bound))
    interval = _dollars(compared, bound, Fraction(1, NANO_USD_PER_USD), lending)
    return Term(sum(realised_by_day(harm).values(), Fraction(0)), "measured", explained, interval)


def late(harm: Harm) -> tuple[int, int, Estimate] | None:
    """Return three counts of requests in lent time: compared requests, late requests, and an estimate of the requests
    that were late because of lending. Return None if there are too few windows."""
    if (compared := harm.strata.get("misses")) is None:
        return None
    requests, misses = (round(sum(getattr(part.lent, axis) for part in compared.values())) for axis in "xy")
    return requests, misses, holdout.effect(compared, 1.0)


def more_windows(harm: Harm) -> int | None:
    return None if (compared := harm.strata.get("misses")) is None else holdout.more_windows(compared, 1.0)


def realised_by_day(harm: Harm) -> dict[date, Fraction]:
    by_day: dict[date, Fraction] = defaultdict(Fraction)
    for row, beyond in _beyond(harm, "cost", "cost_nano", "requests"):
        by_day[row["day"]] += beyond / NANO_USD_PER_USD
    return dict(by_day)


def prefix_cache(harm: Harm, stretches: Stretches) -> Term:
    if harm.confounded is not None:
        return absent(harm.confounded)
    if (compared := harm.strata.get("cache")) is None:
        return absent("serving did not report its prefix cache (SGLang needs --enable-cache-report)")
    prices = stretches.prices(stretches.book.tokens_at)
    usd_per_token = [Fraction(entry.input_usd_per_million) / _MILLION for entry in prices]
    usd, tokens, weighed, lent = Fraction(0), Fraction(0), Fraction(0), 0
    for row, beyond in _beyond(harm, "cache", "cached_tokens", "known_prompt_tokens"):
        price = usd_per_token[stretches.of_day(row["day"])]
        tokens -= beyond
        usd -= beyond * price
        lent += row["known_prompt_tokens"]
        weighed += row["known_prompt_tokens"] * price
    rates = in_turn(f"${entry.input_usd_per_million:f}" for entry in prices)
    explained = f"{float(tokens):+,.0f} prompt tokens fell out of serving's prefix cache, compared with windows in "
    explained += f"which leases were withheld at random, {rates} per million"
    explained += holdout.would_tell(holdout.more_windows(compared, 1.0))
    return Term(usd, "measured", explained, _dollars(compared, 1.0, -weighed / lent, prices))


def interference(harm: Harm, lent: Iterable[Row], stretches: Stretches) -> Term:
    """Return the cost of the time that serving worked longer because of rollouts. Without enough withheld windows, this
    time is estimated from `lent` (rows of `lent_time`). The estimate is the measured delay, plus half of the time in
    which serving and rollouts both worked. The factor of one half is an assumption."""
    if (compared := harm.strata.get("busy")) is None:
        return _by_slices(lent, stretches, harm.confounded or "too few windows have both requests and device slices")
    longer_ns = sum((Fraction(part.effect) for part in compared.values()), Fraction(0))
    lengths = [Fraction(to_ns - from_ns) for from_ns, to_ns in stretches.spans]
    more = holdout.more_windows(compared, None)
    hourly = by_rate(  # The stretch of the longer work is unknown: an hour costs the mean rate.
        stretches,
        _INTERFERENCE,
        [(segment, ns / sum(lengths)) for segment, ns in enumerate(lengths)],
        lambda _, rates: (
            f"serving worked {float(longer_ns) / 1e9:+,.1f} s longer for what it served than in windows in which "
            f"leases were withheld at random, at {rates} a device-hour{holdout.would_tell(more)}"
        ),
    )
    if hourly.unknown:
        return hourly
    usd_per_ns = hourly.usd / NS_PER_HOUR
    return replace(hourly, usd=longer_ns * usd_per_ns, interval=_dollars(compared, None, usd_per_ns, stretches.lending))


def _by_slices(lent: Iterable[Row], stretches: Stretches, why: str) -> Term:
    both_ns, delayed_ns = Counter[int](), Counter[int]()
    for row in lent:
        both_ns[row["segment"]] += row["overlap_ns"]
        delayed_ns[row["segment"]] += row["delayed_ns"]
    half_s, delayed_s = sum(ns // 2 for ns in both_ns.values()) / 1e9, delayed_ns.total() / 1e9
    parts = [f"half of the time that both worked, {half_s:,.1f} s"] if half_s or not delayed_s else []
    if delayed_s:
        parts.append(f"{delayed_s:,.1f} s (measured) that steps beside rollouts took longer than predicted")
    term = by_rate(
        stretches,
        _INTERFERENCE,
        ((segment, Fraction(ns // 2 + delayed_ns[segment], NS_PER_HOUR)) for segment, ns in both_ns.items()),
        lambda _, rates: f"{' and '.join(parts)}, at {rates} a device-hour: {why}",
    )
    if term.unknown:
        return term
    basis: Basis = "assumed" if not delayed_s else "partly measured" if half_s else "measured"
    no_interval = "predicted steps have no interval" if delayed_s else "serving's own slowdown is assumed, not measured"
    return replace(term, basis=basis, interval=None, no_interval=no_interval)


def _beyond(harm: Harm, measure_name: str, y: str, x: str) -> Iterator[tuple[Row, Fraction]]:
    """Yield each row of lent time with its excess. The excess is the row's column `y`, minus its column `x` times the
    mean y / x of withheld windows in the same stratum."""
    keys = holdout.key_of([row for row in harm.clusters if row["measure"] == measure_name])
    of_strata = [(keys[row["device_id"]], row) for row in harm.sums if row["device_id"] in keys]
    sum_x, sum_y = Counter[str](), Counter[str]()
    for key, row in of_strata:
        if row["withheld"]:
            sum_x[key] += row[x]
            sum_y[key] += row[y]
    for key, row in of_strata:
        if row["withheld"] is False:
            yield row, row[y] - Fraction(sum_y[key], sum_x[key]) * row[x]


def _dollars(
    compared: Mapping[str, Stratum], bound: float | None, price: Fraction, entries: Sequence[Entry]
) -> Interval | None:
    estimate = holdout.effect(compared, bound).times(float(price)).widened(*range_of(entries))
    return None if estimate.low == estimate.high else total([estimate])
