"""Tables of the marginal cost of borrowing."""

from fractions import Fraction

from rose.pricing.figures import AMORTIZED, MARGINAL, Figure, Figures
from rose.pricing.marginal_cost.marginal import Marginal, plain
from rose.pricing.marginal_cost.power import Metered
from rose.pricing.marginal_cost.terms import Term
from rose.pricing.money import NS_PER_HOUR, format_usd, nano_usd_of
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Section, Table, report_table

NO_BORROW = "not enough data: no rollout ran on a serving device"
TOTAL, AVOIDABLE, CHARGED, BORROWED = "m", "avoidable device time", "charged", "borrowed time"


def price(run: PricedRun) -> Section:
    parts = {"terms": terms_table(run.make, run.borrow)}
    if run.borrow.metered:
        parts["meters"] = report_table(
            run.stamp,
            "Power meters",
            "class | extra watts while leased | metered | anyway | extra",
            ((name, *_meter(run.make, meter)) for name, meter in run.borrow.metered.items()),
            view="counts",
        )
    return Section(parts)


def terms_table(make: Figures, m: Marginal) -> Table:
    nano, avoidable = m.nano_usd, nano_usd_of(m.avoidable_usd)
    charged = make.amount(sum(nano.values()) + avoidable, MARGINAL, basis=m.basis, interval=m.charged_interval)
    return report_table(
        make.stamp,
        "What borrowing added to the bill (m)",
        "term | in all | per device-hour | rests on",
        (
            (plain(name), in_all(make, term, nano[name]), per_device_hour(make, m, name), term.explained)
            for name, term in m.terms.items()
        ),
        view=MARGINAL,
        text=("rests on",),
        footer=(
            (TOTAL, added(make, m), per_device_hour(make, m), _without(m)),
            (AVOIDABLE, make.amount(avoidable, AMORTIZED), None, "amortized"),
            (CHARGED, charged, None, "m and the avoidable device time"),
            (BORROWED, make.number(m.borrowed_ns, "ns"), None, "rollouts on serving devices"),
        ),
        notes=(_gate(m),),
    )


def added(make: Figures, m: Marginal) -> Figure:
    return in_all(make, m, sum(m.nano_usd.values()))


def per_device_hour(make: Figures, m: Marginal, name: str | None = None) -> Figure:
    term, unknown = (m, None) if name is None else (m.terms[name], m.terms[name].unknown)
    hours, interval = Fraction(m.borrowed_ns, NS_PER_HOUR), term.interval
    return make.money(
        None if unknown or not hours else term.usd / hours,
        MARGINAL,
        per="device-hour",
        basis=term.basis,
        why=unknown or NO_BORROW,
        interval=None if interval is None or interval.high is None or not hours else interval.over(float(hours)),
        no_interval=term.no_interval,
    )


def in_all(make: Figures, part: Term | Marginal, nano: int) -> Figure:
    why = part.unknown if isinstance(part, Term) else None
    shown, no_interval = None if why else nano, part.no_interval
    return make.amount(shown, MARGINAL, basis=part.basis, why=why, interval=part.interval, no_interval=no_interval)


def _without(m: Marginal) -> str:
    missing, absent = " and ".join(map(plain, m.missing)), ", ".join(map(plain, m.absent))
    parts = ((missing, "not enough data"), (absent, "neither measured nor priced"))
    return "; ".join(f"leaves out {terms}: {why}" for terms, why in parts if terms)


def _gate(m: Marginal) -> str:
    if m.idle_anyway is None:
        return (
            "m is valid if the fleet would have existed without the leases, which the price book does not say. If not, "
            f"{format_usd(nano_usd_of(m.unstated_usd))} of device time is charged on top of m. State a probability, "
            "`idle_anyway`, in [lending]."
        )
    if m.idle_anyway < 1:
        chance = "would NOT" if not m.idle_anyway else f"would with a probability of {float(m.idle_anyway):.0%}"
        return (
            f"The price book states, for at least part of the time, that the fleet {chance} have existed without the "
            "leases: time borrowed then is charged its amortized price on top of m, times the probability that the "
            "fleet would not."
        )
    stated = "The price book states that the fleet would have existed without the leases."
    if m.kept:
        charge = "leased time in them is charged its amortized price on top of m."
        return f"{stated} In the recorded spans it would not: {charge}"
    return f"{stated} No decision to keep a device for lending is recorded; `rose borrow --decisions` records them."


def _meter(make: Figures, meter: Metered) -> tuple[Figure, ...]:
    energies = (meter.energy_mw_ns, meter.baseline_mw_ns, meter.extra_mw_ns)
    watts = None if meter.delta_mw is None else meter.delta_mw.times(1 / 1000)
    value, interval = (None, None) if watts is None else (watts.value, watts.interval)
    power_w = make.measure(value, "W", interval=interval, why=meter.why)
    return power_w, *(make.number(energy, "mW*ns", why=meter.why) for energy in energies)
