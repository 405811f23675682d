"""The terms of m as figures: over the run, for a borrowed device-hour, and for each lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rose.pricing.borrowing.marginal import TERMS, LeaseCost, Marginal, marginal
from rose.pricing.borrowing.power import TOO_SHORT, Metered
from rose.pricing.borrowing.report.common import NO_BORROW, Head, amount, counted, head, per_device_hour
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.borrowing.terms import nano_by_key
from rose.pricing.figures import AMORTIZED, MARGINAL, Figure, Figures
from rose.pricing.money import PricingError, format_usd, nano_usd_of
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.stats.bootstrap import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class TermRow:
    """A term, or the total: over the run, per borrowed device-hour, and what it rests on."""

    in_all: Figure
    per_device_hour: Figure
    rests_on: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MeterRow:
    """Power meters of a class: energies in whole milliwatt-nanoseconds; baseline + extra = metered."""

    metered: Figure
    baseline: Figure
    extra: Figure
    extra_power: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRow:
    """A lease's terms; each column sums to the run's. `lease_id` None: what no lease claims."""

    lease_id: str | None
    leased: Figure
    borrowed: Figure
    terms: Mapping[str, Figure]
    total: Figure
    avoidable: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceDocument:
    head: Head
    borrowed: Figure
    terms: Mapping[str, TermRow]
    #: The sum of the terms: m over the run.
    total: TermRow
    #: Device time that would not have been paid for without the leases; `charged` is that and the total.
    avoidable: Figure
    charged: Figure
    #: Leased time in spans in which the device would have been given back.
    gave_back: Figure
    gate: str
    metered: Mapping[str, MeterRow]
    leases: tuple[LeaseRow, ...]


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
    *,
    by_lease: bool = False,
    gave_back: Sequence[Span] = (),
) -> PriceDocument:
    """The terms of m. Raises what `rose.pricing.run.report.build` raises, and PricingError for a span of no device."""
    with priced(root, run_id, price_book, allow_unverified) as run:
        return document(run, gave_back, by_lease=by_lease)


def document(run: PricedRun, gave_back: Sequence[Span] = (), *, by_lease: bool = False) -> PriceDocument:
    """The terms of m of a run that is priced. Raises PricingError for a span of a device that is no serving one."""
    m = charged(run, gave_back, by_lease=by_lease)
    make, nano = run.make, m.nano_usd
    total, avoidable = sum(nano.values()), nano_usd_of(m.avoidable_usd)
    return PriceDocument(
        head=head(run),
        borrowed=make.number(m.borrowed_ns, "ns"),
        terms={name: _term(make, m, name, nano[name]) for name in TERMS},
        total=TermRow(
            in_all=amount(make, total, basis=m.basis, interval=m.interval, no_interval=m.no_interval),
            per_device_hour=_hourly(make, m, None, m.basis, m.interval),
            rests_on=_without(m),
        ),
        avoidable=make.amount(avoidable, AMORTIZED),
        charged=amount(make, total + avoidable, basis=m.basis, interval=m.charged_interval),
        gave_back=make.number(m.gave_back_ns, "ns"),
        gate=_gate(m, bool(gave_back) or m.gave_back_ns > 0),
        metered={name: _meter(make, meter) for name, meter in m.metered.items()},
        leases=_leases(make, m.leases, nano, avoidable),
    )


def charged(run: PricedRun, gave_back: Sequence[Span], *, by_lease: bool = False) -> Marginal:
    """The run's m with the spans in it. Raises PricingError for a span of a device that is not a serving one of it."""
    known = {device.device_id for device in run.allocation.in_pools("serving").devices}
    for span in gave_back:
        if span.device_id not in known:
            raise PricingError(
                f"device {span.device_id!r}, which would have been given back, is no serving device of run "
                f"{run.run.run_id}; it has {', '.join(sorted(known)) or 'none'}"
            )
    return marginal(run.connection, run.run.run_id, run.allocation, run.book, gave_back, by_lease=by_lease)


def _without(m: Marginal) -> str:
    parts = [f"not enough data for {' and '.join(m.missing)}, which it is without"] if m.missing else []
    if m.absent:
        parts.append(f"without {', '.join(name.replace('_', ' ') for name in m.absent)}: absent")
    return "; ".join(parts)


def _term(make: Figures, m: Marginal, name: str, nano: int) -> TermRow:
    term = m.terms[name]
    known = None if term.unknown else nano
    return TermRow(
        in_all=amount(
            make, known, basis=term.basis, why=term.unknown, interval=term.interval, no_interval=term.no_interval
        ),
        per_device_hour=_hourly(make, m, name, term.basis, term.interval),
        rests_on=term.explained,
    )


def _hourly(make: Figures, m: Marginal, name: str | None, basis: str, interval: Interval | None) -> Figure:
    missing = None if name is None else m.terms[name].unknown
    return make.money(
        None if missing else m.usd_per_device_hour(name),
        MARGINAL,
        per="device-hour",
        basis=basis,
        why=missing or NO_BORROW,
        interval=per_device_hour(interval, m),
        no_interval=m.no_interval if name is None else m.terms[name].no_interval,
    )


def _gate(m: Marginal, stated: bool) -> str:
    """Whether the fleet would have been there anyway, on whose word, and what is charged if not."""
    if m.idle_anyway is None:
        return (
            f"m holds if the fleet would have existed without the leases, which the price book does not say. If not, "
            f"{format_usd(nano_usd_of(m.unstated_usd))} of device time is charged on top of m. State a probability, "
            "`idle_anyway`, in [lending]."
        )
    if m.idle_anyway < 1:
        chance = "would NOT" if not m.idle_anyway else f"would with a probability of {float(m.idle_anyway):.0%}"
        return (
            f"The price book states, for at least part of the time, that the fleet {chance} have existed without the "
            "leases: what was borrowed then is charged its amortized price on top of m, times the probability that it "
            "would not."
        )
    if stated:
        return (
            "The price book states that the fleet would have existed without the leases. In the spans given or "
            "recorded it would not: leased time in them is charged its amortized price on top of m."
        )
    return (
        "The price book states that the fleet would have existed without the leases. No decision to keep a device "
        "for lending is recorded: `rose borrow decide` records them, and --gave-back takes such spans for once."
    )


def _meter(make: Figures, metered: Metered) -> MeterRow:
    spread = metered.interval
    watts = None
    if spread is not None:
        watts = Interval(low=spread.low / 1000, high=None if spread.high is None else spread.high / 1000)
    return MeterRow(
        metered=make.number(metered.energy_mw_ns, "mW*ns"),
        baseline=make.number(metered.baseline_mw_ns, "mW*ns"),
        extra=make.number(metered.extra_mw_ns, "mW*ns"),
        extra_power=counted(make, float(metered.delta_mw) / 1000, "W", interval=watts, no_interval=TOO_SHORT),
    )


def _leases(
    make: Figures, leases: Sequence[LeaseCost], nano: Mapping[str, int], avoidable: int
) -> tuple[LeaseRow, ...]:
    """Rounded by column, so that each sums to the run's; a row's total is the sum of its terms."""
    if not leases:
        return ()
    columns = {name: nano_by_key({lease.lease_id: lease.terms[name] for lease in leases}, nano[name]) for name in TERMS}
    beyond = nano_by_key({lease.lease_id: lease.avoidable_usd for lease in leases}, avoidable)
    return tuple(
        LeaseRow(
            lease_id=lease.lease_id,
            leased=make.number(lease.leased_ns, "ns"),
            borrowed=make.number(lease.borrowed_ns, "ns"),
            terms={name: amount(make, columns[name][lease.lease_id]) for name in TERMS},
            total=amount(make, sum(columns[name][lease.lease_id] for name in TERMS)),
            avoidable=make.amount(beyond[lease.lease_id], AMORTIZED),
        )
        for lease in leases
    )
