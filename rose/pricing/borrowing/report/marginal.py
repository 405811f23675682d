"""The terms of m as tables: over the run, for a borrowed device-hour, and for each lease."""

from __future__ import annotations

from collections.abc import Sequence

from rose.pricing.borrowing.marginal import TERMS, Marginal, marginal
from rose.pricing.borrowing.power import TOO_SHORT
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.borrowing.terms import Term, nano_by_key
from rose.pricing.figures import AMORTIZED, MARGINAL, Figure, Figures
from rose.pricing.money import NS_PER_HOUR, PricingError, format_usd, nano_usd_of
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.table import Section, Table, columns

NO_BORROW = "not enough data: no rollout ran on a serving device"
#: Rows below the terms.
TOTAL, AVOIDABLE, CHARGED, BORROWED = "m", "avoidable device time", "charged", "borrowed time"
GAVE_BACK = "leased time in spans given"


def price(run: PricedRun, gave_back: Sequence[Span] = (), *, by_lease: bool = False) -> Section:
    """Return what borrowing added to the bill. Raises PricingError for a span of a device that is no serving one."""
    m = charged(run, gave_back, by_lease=by_lease)
    make, nano = run.make, m.nano_usd
    total, avoidable = sum(nano.values()), nano_usd_of(m.avoidable_usd)
    whole = make.amount(total, MARGINAL, basis=m.basis, interval=m.interval, no_interval=m.no_interval)
    both = make.amount(total + avoidable, MARGINAL, basis=m.basis, interval=m.charged_interval)
    terms = Table(
        title="What borrowing added to the bill (m)",
        view=MARGINAL,
        stamp=run.stamp,
        columns=columns("term", "in all", "per device-hour", "rests on", text=("rests on",)),
        rows=tuple(_term(make, m, name, nano[name]) for name in TERMS),
        footer=(
            (TOTAL, whole, per_device_hour(make, m), _without(m)),
            (AVOIDABLE, make.amount(avoidable, AMORTIZED), None, "amortized"),
            (CHARGED, both, None, "m and the avoidable device time"),
            (BORROWED, make.number(m.borrowed_ns, "ns"), None, "rollouts on serving devices"),
            (GAVE_BACK, make.number(m.gave_back_ns, "ns"), None, ""),
        ),
        notes=(_gate(m, bool(gave_back) or m.gave_back_ns > 0),),
    )
    parts = {"terms": terms}
    if m.metered:
        parts["meters"] = _meters(run, m)
    if m.leases:
        parts["leases"] = _leases(run, m, avoidable)
    return Section(parts)


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


def per_device_hour(make: Figures, m: Marginal, name: str | None = None) -> Figure:
    """m, or a term of it, for a borrowed device-hour."""
    term = m if name is None else m.terms[name]
    interval, unknown = term.interval, None if name is None else m.terms[name].unknown
    hours = m.borrowed_ns / NS_PER_HOUR
    return make.money(
        None if unknown else m.usd_per_device_hour(name),
        MARGINAL,
        per="device-hour",
        basis=term.basis,
        why=unknown or NO_BORROW,
        interval=None if interval is None or interval.high is None or not hours else interval.over(hours),
        no_interval=term.no_interval,
    )


def in_all(make: Figures, term: Term, nano: int | None = None) -> Figure:
    """Return a term over the run; `nano` are its nano-dollars where they were rounded together with others."""
    nano = nano_usd_of(term.usd) if nano is None else nano
    return make.amount(
        None if term.unknown else nano,
        MARGINAL,
        basis=term.basis,
        why=term.unknown,
        interval=term.interval,
        no_interval=term.no_interval,
    )


def _without(m: Marginal) -> str:
    parts = [f"not enough data for {' and '.join(m.missing)}, which it is without"] if m.missing else []
    if m.absent:
        parts.append(f"without {', '.join(map(plain, m.absent))}: absent")
    return "; ".join(parts)


def plain(name: str) -> str:
    """The name of a term as people read it."""
    return name.replace("_", " ")


def _term(make: Figures, m: Marginal, name: str, nano: int) -> tuple[str, Figure, Figure, str]:
    term = m.terms[name]
    return plain(name), in_all(make, term, nano), per_device_hour(make, m, name), term.explained


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


def _meters(run: PricedRun, m: Marginal) -> Table:
    """Energies in whole milliwatt-nanoseconds; anyway + extra = metered."""
    rows = []
    for name, meter in m.metered.items():
        spread = meter.interval
        watts = spread and Interval(low=spread.low / 1000, high=None if spread.high is None else spread.high / 1000)
        power = run.make.measure(float(meter.delta_mw) / 1000, "W", interval=watts, no_interval=TOO_SHORT)
        energies = (meter.energy_mw_ns, meter.baseline_mw_ns, meter.extra_mw_ns)
        rows.append((name, power, *(run.make.number(energy, "mW*ns") for energy in energies)))
    return Table(
        title="Power meters",
        view="counts",
        stamp=run.stamp,
        columns=columns("class", "extra watts while lent", "metered", "anyway", "extra"),
        rows=tuple(rows),
    )


def _leases(run: PricedRun, m: Marginal, avoidable: int) -> Table:
    """Rounded by column, so that each sums to the run's; m is the sum of a row's terms."""
    make, nano, leases = run.make, m.nano_usd, m.leases
    by_term = {name: nano_by_key({lease.lease_id: lease.terms[name] for lease in leases}, nano[name]) for name in TERMS}
    beyond = nano_by_key({lease.lease_id: lease.avoidable_usd for lease in leases}, avoidable)
    shown = [name for name in TERMS if any(by_term[name].values())]
    return Table(
        title="By lease",
        view=MARGINAL,
        stamp=run.stamp,
        columns=columns("lease", "leased", "borrowed", *map(plain, shown), "m", "avoidable"),
        rows=tuple(
            (
                lease.lease_id or "no lease",
                make.number(lease.leased_ns, "ns"),
                make.number(lease.borrowed_ns, "ns"),
                *(make.amount(by_term[name][lease.lease_id], MARGINAL) for name in shown),
                make.amount(sum(by_term[name][lease.lease_id] for name in TERMS), MARGINAL),
                make.amount(beyond[lease.lease_id], AMORTIZED),
            )
            for lease in leases
        ),
        notes=("Each column sums to the run's figure, to the nano-dollar; a term that is 0 for all is left out.",),
    )
