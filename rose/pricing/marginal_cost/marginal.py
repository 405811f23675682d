"""The marginal cost m of borrowing (docs/pricing.md). It is not on the bill. Each term is an exact fraction. Each
stretch (the time between two price changes) has its own prices. `idle_anyway` is the probability P that the fleet would
exist without leases. If the price book does not state P, P counts as 1."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from functools import partial

import duckdb

from rose.pricing.charges.allocation import Allocation
from rose.pricing.marginal_cost import harm, missed_budgets, power, scale_down, terms
from rose.pricing.marginal_cost.harm import Harm
from rose.pricing.marginal_cost.power import Metered
from rose.pricing.marginal_cost.terms import Basis, Row, Stretches, Term
from rose.pricing.money import NS_PER_HOUR, NS_PER_S
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import Estimate, total

_BYTES_PER_GB = 10**9
_MILLION = 10**6
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Marginal:
    terms: Mapping[str, Term]
    borrowed_ns: int
    idle_anyway: Fraction | None  #: Lowest stated P (see the module); None if unstated for part of the time.
    avoidable_usd: Fraction = Fraction(0)  #: Amortized price of device time not paid for without the leases.
    avoidable_interval: Interval | None = None
    unstated_usd: Fraction = Fraction(0)  #: Amortized price of borrowed time without a stated P, charged if P were 0.
    let_go_usd: Fraction = Fraction(0)  #: Price of dedicated devices given up because of borrowing, as recorded.
    on_fleet: bool = False  #: Whether the run shares a fleet; the fleet's run then counts devices let go.
    kept: bool = False  #: Whether decisions to keep a device for lending are recorded, and charged as avoidable.
    harm: Harm = field(default_factory=Harm)
    realised_usd: Mapping[date, Fraction] = field(default_factory=dict)  #: The term `provision`, by UTC day.
    leased_ns: int = 0
    metered: Mapping[str, Metered] = field(default_factory=dict)
    #: Borrowed time by (device class, stretch between price changes).
    borrowed_by_stretch: Mapping[tuple[str, int], Fraction] = field(default_factory=dict)

    @property
    def usd(self) -> Fraction:
        return sum((term.usd for term in self.terms.values()), Fraction(0))

    @property
    def nano_usd(self) -> dict[str, int]:
        """Return the nano-dollars of each term, rounded by largest remainder."""
        return terms.nano_by_key({name: term.usd for name, term in self.terms.items()})

    @property
    def charged_usd(self) -> Fraction:
        return self.usd + self.avoidable_usd

    @property
    def charged_estimate(self) -> Estimate | None:
        if (m := self.estimate) is None:
            return None
        if (avoidable := Estimate.between(self.avoidable_usd, self.avoidable_interval)) is None:
            return m.plus(float(self.avoidable_usd))
        return Estimate.between(self.charged_usd, total([m, avoidable]))

    @property
    def charged_interval(self) -> Interval | None:
        return None if self.charged_estimate is None else self.charged_estimate.interval

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the names of terms without enough data. Sums leave these terms out."""
        return tuple(name for name, term in self.terms.items() if term.missing is not None)

    @property
    def absent(self) -> tuple[str, ...]:
        """Return the names of terms that were neither measured nor priced. Sums leave these terms out."""
        return tuple(name for name, term in self.terms.items() if term.basis == "absent")

    @property
    def basis(self) -> Basis:
        """Return what the sum is based on, such as `measured`. Measured terms of $0 are ignored."""
        return terms.basis_of(term.basis for term in self.terms.values() if term.usd or term.basis != "measured")

    @property
    def no_interval(self) -> str | None:
        reasons = {
            plain(name): term.no_interval or ("it is not known" if term.missing else None)
            for name, term in self.terms.items()
        }
        return "; ".join(f"{name}: {why}" for name, why in reasons.items() if why) or None

    @property
    def estimate(self) -> Estimate | None:
        """Return `usd` with its 95% interval (terms count as independent), or None if `no_interval` gives a reason."""
        if self.no_interval:
            return None
        ranged = [Estimate.between(term.usd, term.interval) for term in self.terms.values()]
        uncertain = [part for part in ranged if part is not None]
        known = float(self.usd) - sum(part.value for part in uncertain)
        ends = total(uncertain)
        if ends is None or ends.high is None:
            return Estimate(known, known, known)
        return Estimate(float(self.usd), ends.low + known, ends.high + known)

    @property
    def interval(self) -> Interval | None:
        return None if self.estimate is None else self.estimate.interval


def marginal(connection: duckdb.DuckDBPyConnection, run_id: str, allocation: Allocation, book: PriceBook) -> Marginal:
    """Return the marginal cost of a run. `connection` must have the run's snapshot. Raises PriceBookError."""
    stretches = Stretches.over(book, allocation.period_ns)
    set_variables(connection, run_id=run_id)
    decided = rows(connection, "borrowing/scale_downs")
    shared = allocation.in_pools("serving").shared
    pieces = scale_down.cut([span for span, _ in scale_down.spans_of(decided, "kept")], shared)
    set_variables(
        connection,
        period_end_ns=allocation.period_ns[1],
        price_changes=stretches.changes_ns,
        span_device=[span.device_id for span, _ in pieces],
        span_from=[span.from_ns for span, _ in pieces],
        span_to=[span.to_ns for span, _ in pieces],
    )
    spans, lent = rows(connection, "borrowing/lease_spans"), rows(connection, "borrowing/lent_time")
    leased, kept = ([row for row in spans if (row["span"] is None) is whole] for whole in (True, False))
    harmed = harm.measure(connection, stretches.lending)
    metered = power.metered(rows(connection, "borrowing/power_by_window"), harmed.not_random)
    amounts = rows(connection, "borrowing/rated_amounts")
    syncs, recomputed = ([row for row in amounts if row["what"] == what] for what in ("sync", "recomputed"))
    borrowed: dict[tuple[str, int], Fraction] = defaultdict(Fraction)
    for row in lent:
        for segment, times in stretches.divide(row, "rollout_ns"):
            borrowed[row["device_class"], segment] += times["rollout_ns"]
    provision, realised_usd = missed_budgets.realised(harmed, connection, stretches)
    billed = defaultdict(Fraction, borrowed)
    for time in shared:
        if time.bucket == "rollout":
            billed[time.device_class, stretches.number_at(time.hour_ns)] -= time.others_ns
    ranges = [entry.idle_anyway_range for entry in stretches.lending]
    silent = {segment for segment, ends in enumerate(ranges) if ends is None}
    # The probability, for each stretch, that the fleet would have existed without leases.
    low, gate, high = ([Fraction(1) if ends is None else ends[n] for ends in ranges] for n in range(3))
    avoidable, *ends = (
        scale_down.avoidable_usd(billed, kept, stretches, shares, pieces) for shares in (gate, low, high)
    )
    return Marginal(
        terms={
            "energy": power.energy(lent, leased, metered, stretches),
            "transfer": _transfer(syncs, stretches),
            "scheduler": terms.by_rate(
                stretches,
                "scheduler_usd_per_lease_s",
                ((row["segment"], Fraction(row["leased_ns"], NS_PER_S)) for row in leased),
                lambda seconds, rates: f"{float(seconds):,.1f} s leased at {rates} a second",
            ),
            "kv_recompute": terms.by_rate(
                stretches,
                "kv_recompute_usd_per_million_tokens",
                ((row["segment"], Fraction(row["tokens"], _MILLION)) for row in recomputed),
                lambda millions, rates: (
                    f"{int(millions * _MILLION):,} prompt tokens computed again at {rates} per million"
                ),
            ),
            "provision": provision,
            "prefix_cache": harm.prefix_cache(harmed, stretches),
            "interference": harm.interference(harmed, lent, stretches),
            "held_memory": _held_memory(rows(connection, "borrowing/held_memory"), stretches),
            "publishing": terms.by_rate(
                stretches,
                "publish_usd_per_sync",
                ((row["segment"], Fraction(row["syncs"])) for row in syncs),
                lambda count, rates: f"{int(count):,} syncs to serving devices at {rates}",
            ),
        },
        borrowed_ns=sum(row["rollout_ns"] for row in lent),
        leased_ns=sum(row["leased_ns"] for row in leased),
        idle_anyway=None if silent else min(gate),
        avoidable_usd=avoidable,
        avoidable_interval=Interval(low=float(min(ends)), high=float(max(ends))) if ends[0] != ends[1] else None,
        let_go_usd=scale_down.let_go_usd(decided, allocation, book),
        on_fleet=any(device.fleet_run_id != run_id for device in allocation.devices),
        unstated_usd=stretches.usd("serving", {key: ns for key, ns in billed.items() if key[1] in silent}),
        kept=any(gate[row["segment"]] for row in kept),
        harm=harmed,
        realised_usd=realised_usd,
        metered=metered,
        borrowed_by_stretch=borrowed,
    )


def _transfer(syncs: Sequence[Row], stretches: Stretches) -> Term:
    sizes, usd = Counter[str](), defaultdict[str, Fraction](Fraction)
    prices = {row["route"]: stretches.prices(partial(stretches.book.transfer_at, row["route"])) for row in syncs}
    for row in syncs:
        route, size = row["route"], row["wire_bytes"]
        sizes[route] += size
        usd[route] += Fraction(prices[route][row["segment"]].usd_per_gb) * size / _BYTES_PER_GB
    rates = {route: terms.in_turn(f"${float(price.usd_per_gb):g}/GB" for price in prices[route]) for route in prices}
    sent = ", ".join(f"{sizes[route] / _BYTES_PER_GB:,.3f} GB {route} at {rates[route]}" for route in sorted(sizes))
    interval = terms.by_book((cost, prices[route]) for route, cost in usd.items())
    return Term(sum(usd.values(), Fraction(0)), "measured", sent or "no sync to a serving device", interval)


def _held_memory(held: Iterable[Row], stretches: Stretches) -> Term:
    sizes = [(row["segment"], row["byte_ns"]) for row in held]
    term = terms.by_rate(
        stretches,
        "held_memory_usd_per_gib_hour",
        ((segment, Fraction(int(byte_ns or 0), _GIB * NS_PER_HOUR)) for segment, byte_ns in sizes),
        lambda gib_hours, rates: f"{float(gib_hours):,.3f} GiB-hours of KV memory held while not lent at {rates}",
    )
    if term.unknown is None and any(byte_ns is None for _, byte_ns in sizes):
        return terms.absent("an engine did not report its memory")
    return term


def plain(name: str) -> str:
    return name.replace("_", " ")
