"""The electricity that lending costs: metered and compared with withheld windows, or assumed from a power curve.

[D] Extra energy = sum over strata of E_lent - T_lent * E_withheld / T_withheld. The energy E was metered in time T."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from rose.pricing.marginal_cost.terms import Basis, Row, Stretches, Term, absent, basis_of, in_turn, range_of
from rose.pricing.money import J_PER_KWH, MW_NS_PER_KWH, NS_PER_S
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.stats import holdout
from rose.pricing.stats.uncertainty import Estimate, total


@dataclass(frozen=True, slots=True)
class Metered:
    """Metered energy of serving devices of one device class, in milliwatt-nanoseconds: in total, and during leases."""

    energy_mw_ns: int
    leased_mw_ns: int
    leased_ns: int
    delta_mw: Estimate | None = None  #: Extra milliwatts while leased; None where `why` says why.
    why: str | None = None
    more_windows: int | None = 0  #: Withheld windows that would tell it from chance; None where none would.

    @property
    def extra_mw_ns(self) -> int | None:
        return None if self.delta_mw is None else round(Fraction(self.delta_mw.value) * self.leased_ns)

    @property
    def baseline_mw_ns(self) -> int | None:
        return None if self.extra_mw_ns is None else self.energy_mw_ns - self.extra_mw_ns


def metered(readings: Iterable[Row], not_random: str | None) -> dict[str, Metered]:
    """Return the metered energy by device class. `not_random` says why withheld windows are no random sample."""
    by_class: dict[str, list[Row]] = defaultdict(list)
    for row in readings:
        by_class[row["device_class"]].append(row)
    return {device_class: _compared(own, not_random) for device_class, own in sorted(by_class.items())}


def _compared(readings: Sequence[Row], not_random: str | None) -> Metered:
    drawn = [row for row in readings if row["withheld"] is not None]
    energy_mw_ns, leased_mw_ns, leased_ns = (
        sum(int(row[name]) for row in readings if row["withheld"] is None)
        for name in ("energy_mw_ns", "leased_mw_ns", "leased_ns")
    )
    leased_s = sum(int(row["leased_ns"]) for row in drawn) / NS_PER_S
    compared = None if not_random or not leased_s else holdout.strata(drawn)
    windows = sum(int(row["clusters"]) for row in drawn if row["withheld"])
    few = f"confounded: power was read in {holdout.too_few(windows)}" if leased_s else "no leased time was read"
    if compared is None:
        return Metered(energy_mw_ns, leased_mw_ns, leased_ns, why=not_random or few)
    delta_mw, more_windows = holdout.effect(compared, None).times(1 / leased_s), holdout.more_windows(compared, None)
    return Metered(energy_mw_ns, leased_mw_ns, leased_ns, delta_mw, None, more_windows)


def energy(lent: Sequence[Row], leased: Sequence[Row], readings: Mapping[str, Metered], stretches: Stretches) -> Term:
    """Return the energy term. It is absent if a class has no power curve and its readings cannot be compared.
    Raises PriceBookError if a class has no power curve and no readings."""
    book = stretches.book
    drawing = {row["device_class"] for row in lent if row["busy_ns"] > row["base_ns"]}
    usd = Fraction(0)
    bases: list[Basis] = []
    how: list[str] = []
    estimates: list[Estimate] = []
    no_interval: list[str] = []
    tariffs = stretches.prices(book.electricity_at)
    tariff = range_of(tariffs)
    for device_class in sorted(drawing | {row["device_class"] for row in leased if row["device_class"] is not None}):
        rates = stretches.prices(partial(_usd_per_joule, book, device_class))
        if None in rates:
            whole = all(rate is None for rate in rates)
            part = "" if whole else " part of the time"
            how.append(f"{device_class}: the price of the device covers its energy{part}")
            bases.append("price book")
            if whole:
                continue
        meter = readings.get(device_class)
        if meter is not None and meter.delta_mw is not None:
            own = [row for row in leased if row["device_class"] == device_class]
            charges = (Fraction(row["leased_ns"], NS_PER_S) * (rates[row["segment"]] or 0) for row in own)
            usd_per_mw = sum(charges, Fraction(0)) / 1000
            usd += Fraction(meter.delta_mw.value) * usd_per_mw
            estimates.append(meter.delta_mw.times(float(usd_per_mw)).widened(*tariff))
            bases.append("measured")
            how.append(f"{device_class}: {_explained(meter)}")
            continue
        if meter is not None and device_class not in {figure.device_class for figure in book.power}:
            most_usd = Fraction(meter.leased_mw_ns, 1000 * NS_PER_S) * max(rate or 0 for rate in rates)
            return absent(
                f"{device_class}: {_explained(meter)}; it costs at least $0 and at most ${float(most_usd):.6g}"
            )
        figure, cost = book.power_of(device_class), Fraction(0)
        for row in (row for row in lent if row["device_class"] == device_class):
            for segment, times in stretches.divide(row, "base_ns", "busy_ns"):
                extra_s = (times["busy_ns"] - times["base_ns"]) / NS_PER_S
                cost += Fraction(figure.load_w - figure.idle_w) * extra_s * (rates[segment] or 0)
        usd += cost
        if figure.low_share is not None:
            known = Estimate(float(cost), float(cost), float(cost))
            estimates.append(known.widened(*range_of([figure])).widened(*tariff))
        else:
            no_interval.append(f"power of {device_class} is assumed, and the price book gives no range for it")
        bases.append("assumed")
        how.append(f"{device_class}: {figure.load_w - figure.idle_w} W from idle to full load, assumed")
        how += [] if meter is None else [_explained(meter)]
        if unknown_ns := sum(row["unexplained_ns"] for row in lent if row["device_class"] == device_class):
            how.append(f"it is unknown whose engine started for {unknown_ns / NS_PER_S:,.1f} s of it")
    drawn, ends = "; ".join(how) or "nothing was lent", total(estimates)
    explained = f"{drawn}; " + in_turn(f"PUE {price.pue}, ${price.usd_per_kwh}/kWh" for price in tariffs)
    interval = None if no_interval or ends is None or ends.low == ends.high else ends
    return Term(usd, basis_of(bases), explained, interval, "; ".join(no_interval) or None)


def _usd_per_joule(book: PriceBook, device_class: str, at_ns: int) -> Fraction | None:
    """Return the price of a joule, tariff * PUE, or None if the price of the device includes energy."""
    if book.device_at(device_class, "serving", at_ns).energy_included:
        return None
    electricity = book.electricity_at(at_ns)
    return Fraction(electricity.usd_per_kwh) * Fraction(electricity.pue) / J_PER_KWH


def _explained(meter: Metered) -> str:
    if meter.delta_mw is None or meter.extra_mw_ns is None:
        kwh = float(Fraction(meter.leased_mw_ns, MW_NS_PER_KWH))
        return f"lending's part of the {kwh:.6g} kWh that were metered while leased is not known: {meter.why}"
    watts, low, high = (end / 1000 for end in (meter.delta_mw.value, meter.delta_mw.low, meter.delta_mw.high))
    extra, anyway = (ns / MW_NS_PER_KWH for ns in (meter.extra_mw_ns, meter.energy_mw_ns - meter.extra_mw_ns))
    return (
        f"{watts:+.1f} W ({low:+.1f} to {high:+.1f}) while leased, metered against windows in which leases were "
        f"withheld at random; {anyway:.6g} kWh would have been drawn anyway and {extra:.6g} kWh were extra"
        + holdout.would_tell(meter.more_windows)
    )
