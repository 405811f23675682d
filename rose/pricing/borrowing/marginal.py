"""What the borrow added to the bill: energy, transfer, scheduler, recomputed KV cache, provision.

[D] m = dP * PUE * tariff / 3.6e6 + transfer_GB * $/GB / borrowed_s + scheduler + KV recompute + provision, in dollars
per borrowed device-second. A borrowed device-second is a second of rollout work on a serving device (`rollout_ns`).
Each term is kept as a total in dollars, an exact fraction, so that terms and leases add up before anything is rounded.
Where a price changes during a run, each side is charged at its own.

m is a decision figure and does not sum to the bill. It holds only if the fleet would have existed without the leases
(the idle-anyway gate), which the price book gives a probability P (`idle_anyway`). Where it would not, device time was
there to be avoided, and is charged on top of m at its amortized price, for the run's part of hours that it shared:

- (1 - P) of borrowed device time;
- P of all leased time of a span in which the device would have been given back (`scale_down`): without the lease none
  of that time would have been paid for.

Where the book states no P, m is conditional on it (`unstated_usd` is what hangs on it), and is charged as if P were 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import duckdb

from rose.pricing.borrowing import cash, harm, idle_anyway, power, provision, scale_down
from rose.pricing.borrowing.harm import Harm
from rose.pricing.borrowing.idle_anyway import Gate
from rose.pricing.borrowing.power import Metered
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.borrowing.terms import (
    Basis,
    Parts,
    Stretches,
    Term,
    add,
    basis_of,
    by_book,
    in_turn,
    nano_by_key,
    term,
)
from rose.pricing.charges.allocation import Allocation
from rose.pricing.money import NS_PER_HOUR, NS_PER_S, split
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import Estimate, total

TERMS: tuple[str, ...] = (
    "energy",
    "transfer",
    "scheduler",
    "kv_recompute",
    "provision",
    "prefix_cache",
    "interference",
    "held_memory",
    "publishing",
)

_BYTES_PER_GB = 10**9
_MILLION = 10**6

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseCost:
    """One lease's share of the run's terms; `lease_id` None is what no lease claims."""

    lease_id: str | None
    borrowed_ns: int
    leased_ns: int
    terms: Mapping[str, Fraction]
    avoidable_usd: Fraction

    @property
    def usd(self) -> Fraction:
        return sum(self.terms.values(), Fraction(0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Marginal:
    """The terms, the borrowed time they are for, and what the idle-anyway gate adds."""

    terms: Mapping[str, Term]
    borrowed_ns: int
    #: Lowest probability that the price book states for the fleet to have existed without the leases; None where, for
    #: part of the time at least, it states none.
    idle_anyway: Fraction | None
    #: Device time that would not have been paid for without the leases, at its amortized price, dollars.
    avoidable_usd: Fraction = Fraction(0)
    #: 95% of it, by the range of the stated probability.
    avoidable_interval: Interval | None = None
    #: Amortized price of the borrowed time for which the book states no probability: charged on top of m, were the
    #: fleet there for lending alone.
    unstated_usd: Fraction = Fraction(0)
    #: What was not paid for dedicated devices that were given up because there was borrowing, by recorded decisions.
    let_go_usd: Fraction = Fraction(0)
    #: Whether the run shares a fleet, whose run has what was given up.
    on_fleet: bool = False
    #: Leased time in spans in which the device would have been given back, and charged as avoidable.
    gave_back_ns: int = 0
    #: What withheld windows say, or why lending cannot be told from load.
    harm: Harm = field(default_factory=Harm)
    #: Time for which serving devices were leased.
    leased_ns: int = 0
    #: Weights sent to serving devices.
    sent_bytes: int = 0
    #: What the power meters said, by device class.
    metered: Mapping[str, Metered] = field(default_factory=dict)
    #: By lease, where that was asked for; else empty.
    leases: tuple[LeaseCost, ...] = ()
    #: Borrowed time by (device class, stretch between price changes).
    borrowed_by_stretch: Mapping[tuple[str, int], Fraction] = field(default_factory=dict)

    @property
    def usd(self) -> Fraction:
        """What the borrow added to the bill, if the gate holds."""
        return sum((term.usd for term in self.terms.values()), Fraction(0))

    @property
    def nano_usd(self) -> dict[str, int]:
        """Whole nano-dollars of each term; they sum to the rounded `usd`, by largest remainder."""
        return nano_by_key({name: term.usd for name, term in self.terms.items()})

    @property
    def charged_usd(self) -> Fraction:
        """What the borrow is to be charged: m, and the device time that it kept from being avoided."""
        return self.usd + self.avoidable_usd

    @property
    def charged_estimate(self) -> Estimate | None:
        """`charged_usd` and its 95%; None where `no_interval` says why."""
        if (m := self.estimate) is None:
            return None
        if self.avoidable_interval is None or self.avoidable_interval.high is None:
            return m.plus(float(self.avoidable_usd))
        ends = self.avoidable_interval.low, self.avoidable_interval.high
        spread = total([m, Estimate(float(self.avoidable_usd), *ends)])
        assert spread is not None and spread.high is not None  # noqa: PT018 - two estimates have a sum
        return Estimate(float(self.charged_usd), spread.low, spread.high)

    @property
    def charged_interval(self) -> Interval | None:
        """95% of `charged_usd`; None where it is known exactly, or `no_interval` says why there is none."""
        estimate = self.charged_estimate
        if estimate is None or estimate.low == estimate.high:
            return None
        return Interval(low=estimate.low, high=estimate.high)

    @property
    def missing(self) -> tuple[str, ...]:
        """Terms with not enough data, which the sums are without."""
        return tuple(name for name, term in self.terms.items() if term.missing is not None)

    @property
    def absent(self) -> tuple[str, ...]:
        """Terms that were neither measured nor have a price in the book, which the sums are without."""
        return tuple(name for name, term in self.terms.items() if term.basis == "absent")

    @property
    def basis(self) -> Basis:
        """What the sum rests on. A term that the price book sets to nothing weighs nothing."""
        return basis_of(term.basis for term in self.terms.values() if term.usd or term.basis != "measured")

    @property
    def no_interval(self) -> str | None:
        """Why no honest interval of `usd` can be given: what every term without one says; None where one can."""
        reasons = {
            name: term.no_interval or (None if term.missing is None else "it is not known")
            for name, term in self.terms.items()
        }
        return "; ".join(f"{name.replace('_', ' ')}: {why}" for name, why in reasons.items() if why) or None

    @property
    def estimate(self) -> Estimate | None:
        """`usd` and its 95%, the terms taken as independent; ends equal to it where all is known exactly.

        None where `no_interval` says why.
        """
        if self.no_interval:
            return None
        uncertain = [
            Estimate(float(term.usd), term.interval.low, term.interval.high)
            for term in self.terms.values()
            if term.interval is not None and term.interval.high is not None
        ]
        spread = total(uncertain)
        known = float(self.usd) - sum(part.value for part in uncertain)
        if spread is None or spread.high is None:
            return Estimate(known, known, known)
        return Estimate(float(self.usd), spread.low + known, spread.high + known)

    @property
    def interval(self) -> Interval | None:
        """95% interval of `usd`; None where it is known exactly, or `no_interval` says why there is none."""
        estimate = self.estimate
        if estimate is None or estimate.low == estimate.high:
            return None
        return Interval(low=estimate.low, high=estimate.high)

    def usd_per_device_hour(self, term: str | None = None) -> Fraction | None:
        """m, or one term of it, per borrowed device-hour; None where nothing was borrowed."""
        usd = self.usd if term is None else self.terms[term].usd
        return usd * NS_PER_HOUR / self.borrowed_ns if self.borrowed_ns else None


def marginal(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    allocation: Allocation,
    book: PriceBook,
    gave_back: Sequence[Span] = (),
    *,
    by_lease: bool = False,
) -> Marginal:
    """The marginal cost of a run's borrow, with `by_lease` divided among its leases too. The connection has a snapshot.

    Raises PriceBookError for a route, a device's power or any other price that the book lacks.
    """
    period_ns = allocation.period_ns
    stretches = Stretches.over(book, period_ns)
    set_variables(connection, run_id=run_id)
    decided = rows(connection, "borrowing/scale_downs")
    gave_back = scale_down.check([*gave_back, *scale_down.recorded(decided)], "spans given, and the ledger's decisions")
    shared = allocation.in_pools("serving").shared
    pieces = idle_anyway.cut(gave_back, shared)
    set_variables(
        connection,
        run_id=run_id,
        period_end_ns=period_ns[1],
        price_changes=stretches.changes_ns,
        by_lease=by_lease,
        load_points=power.load_points(book),
        span_device=[span.device_id for span, _ in pieces],
        span_from=[span.from_ns for span, _ in pieces],
        span_to=[span.to_ns for span, _ in pieces],
    )
    leased, lent = rows(connection, "borrowing/lease_spans"), rows(connection, "borrowing/lent_time")
    metered = power.metered(rows(connection, "borrowing/power_by_load"))
    lending = [book.lending_at(at_ns) for at_ns in stretches.starts_ns]
    harmed = harm.measure(connection, lending, by_lease=by_lease)
    syncs = rows(connection, "borrowing/transfer")
    transfer, sent_bytes = _transfer(syncs, stretches, book)
    terms = {
        "energy": power.energy(lent, leased, metered, stretches, book),
        "transfer": transfer,
        "scheduler": _scheduler(leased, stretches, book),
        "kv_recompute": _kv_recompute(rows(connection, "borrowing/recomputed_tokens"), stretches, book),
        "provision": provision.realised(harmed, connection, stretches, book),
        "prefix_cache": harm.prefix_cache(harmed, stretches, book),
        "interference": harm.interference(harmed, rows(connection, "borrowing/overlap_time"), stretches, book),
        "held_memory": harm.held_memory(rows(connection, "borrowing/held_memory"), stretches, book),
        "publishing": harm.publishing(syncs, stretches, book),
    }
    borrowed: dict[tuple[str, int], Fraction] = {}
    for row in lent:
        for segment, times in stretches.divide(row, "rollout_ns"):
            key = (row["device_class"], segment)
            borrowed[key] = borrowed.get(key, Fraction(0)) + times["rollout_ns"]
    gave_back_time = rows(connection, "borrowing/gave_back_time") if gave_back else []
    let_go = [row for row in decided if row["decision"] == "let_go"]
    if let_go:
        lent_devices = {(row["device_id"], row["device_class"]) for row in rows(connection, "borrowing/ever_there")}
        # A device at the price of a dearer class would save what nobody paid.
        let_go = [row for row in let_go if (row["device_id"], row["device_class"]) in lent_devices]
    gate = Gate.over(stretches, book)
    billed = idle_anyway.billed(lent, shared, stretches)
    avoidable, gave_back_ns = idle_anyway.avoidable(billed, gave_back_time, stretches, book, gate.stated, pieces)
    ends = [
        sum(idle_anyway.avoidable(billed, gave_back_time, stretches, book, shares, pieces)[0].values(), Fraction(0))
        for shares in (gate.low, gate.high)
    ]
    return Marginal(
        terms=terms,
        borrowed_ns=sum(row["rollout_ns"] for row in lent),
        leased_ns=sum(row["leased_ns"] for row in leased),
        idle_anyway=None if gate.silent else min(gate.stated),
        avoidable_usd=sum(avoidable.values(), Fraction(0)),
        avoidable_interval=Interval(low=float(min(ends)), high=float(max(ends))) if ends[0] != ends[1] else None,
        let_go_usd=cash.let_go_usd(let_go, allocation, book),
        on_fleet=any(device.fleet_run_id != run_id for device in allocation.devices),
        unstated_usd=idle_anyway.unstated(billed, stretches, book, gate.silent),
        gave_back_ns=gave_back_ns,
        harm=harmed,
        sent_bytes=sent_bytes,
        metered=metered,
        leases=_leases(terms, avoidable, lent, leased) if by_lease else (),
        borrowed_by_stretch=borrowed,
    )


def _leases(
    terms: Mapping[str, Term], avoidable: Parts, lent: Iterable[Row], leased: Iterable[Row]
) -> tuple[LeaseCost, ...]:
    """Every lease that has time or a part of some term, by id; what no lease claims comes last."""
    borrowed_ns: dict[str | None, int] = {}
    leased_ns: dict[str | None, int] = {}
    for row in lent:
        borrowed_ns[row["lease_id"]] = borrowed_ns.get(row["lease_id"], 0) + row["rollout_ns"]
    for row in leased:
        leased_ns[row["lease_id"]] = leased_ns.get(row["lease_id"], 0) + row["leased_ns"]
    parts = [term.by_lease for term in terms.values()]
    lease_ids = set(avoidable).union(borrowed_ns, leased_ns, *parts)
    return tuple(
        LeaseCost(
            lease_id=lease_id,
            borrowed_ns=borrowed_ns.get(lease_id, 0),
            leased_ns=leased_ns.get(lease_id, 0),
            terms={name: term.by_lease.get(lease_id, Fraction(0)) for name, term in terms.items()},
            avoidable_usd=avoidable.get(lease_id, Fraction(0)),
        )
        for lease_id in sorted(lease_ids, key=lambda lease_id: (lease_id is None, lease_id or ""))
    )


def _transfer(syncs: Iterable[Row], stretches: Stretches, book: PriceBook) -> tuple[Term, int]:
    """The term and its bytes: all sent to a serving device, failed syncs included: they were sent all the same.

    Bytes of a sync that came under no lease are divided among those that used them, by the time they were in force.
    """
    parts: Parts = {}
    sizes: dict[str, int] = {}
    rates: dict[str, list[Fraction]] = {}
    usd: dict[str, Fraction] = {}
    shared: dict[str, dict[str, Row]] = {}

    def charge(row: Row, size: int) -> None:
        route = row["route"]
        sizes[route] = sizes.get(route, 0) + size
        if route not in rates:
            rates[route] = [Fraction(book.transfer_at(route, at_ns).usd_per_gb) for at_ns in stretches.starts_ns]
        cost = rates[route][row["segment"]] * size / _BYTES_PER_GB
        usd[route] = usd.get(route, Fraction(0)) + cost
        add(parts, row["lease_id"], cost)

    for row in syncs:
        if row["sync"] is None:
            charge(row, row["wire_bytes"])
        else:
            shared.setdefault(row["sync"], {})[row["lease_id"]] = row
    for users in shared.values():
        size = next(iter(users.values()))["wire_bytes"]
        for lease_id, part in split(size, {lease_id: row["weight_ns"] for lease_id, row in users.items()}).items():
            charge(users[lease_id], part)
    routes = ", ".join(
        f"{size / _BYTES_PER_GB:,.3f} GB {route} at " + in_turn(f"${float(rate):g}/GB" for rate in rates[route])
        for route, size in sorted(sizes.items())
    )
    interval = by_book(
        (cost, [book.transfer_at(route, at_ns) for at_ns in stretches.starts_ns]) for route, cost in usd.items()
    )
    return term(parts, "measured", routes or "no sync to a serving device", interval=interval), sum(sizes.values())


def _scheduler(leased: Iterable[Row], stretches: Stretches, book: PriceBook) -> Term:
    rates = [book.lending_at(at_ns).scheduler_usd_per_lease_s for at_ns in stretches.starts_ns]
    parts: Parts = {}
    leased_ns = 0
    for row in leased:
        leased_ns += row["leased_ns"]
        add(parts, row["lease_id"], Fraction(rates[row["segment"]]) * row["leased_ns"] / NS_PER_S)
    rate_texts = in_turn(f"${rate}" for rate in rates)
    return term(
        parts,
        "measured",
        f"{leased_ns / NS_PER_S:,.1f} s leased at {rate_texts} a second",
        interval=by_book([(sum(parts.values(), Fraction(0)), list(map(book.lending_at, stretches.starts_ns)))]),
    )


def _kv_recompute(recomputed: Iterable[Row], stretches: Stretches, book: PriceBook) -> Term:
    rates = [book.lending_at(at_ns).kv_recompute_usd_per_million_tokens for at_ns in stretches.starts_ns]
    parts: Parts = {}
    tokens = 0
    for row in recomputed:
        tokens += row["tokens"]
        add(parts, row["lease_id"], Fraction(rates[row["segment"]]) * row["tokens"] / _MILLION)
    rate_texts = in_turn(f"${rate}" for rate in rates)
    return term(
        parts,
        "measured",
        f"{tokens:,} prompt tokens computed again at {rate_texts} per million",
        interval=by_book([(sum(parts.values(), Fraction(0)), list(map(book.lending_at, stretches.starts_ns)))]),
    )
