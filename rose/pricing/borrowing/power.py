"""Electricity that lending drew: metered where power was read, else from the price book's curve. [D] dP is the mean
power while lent less the mean while not lent, within the same fifth of serving load, the fifths weighted by their lent
time. It is charged for all leased time. Where nothing can be compared, the extra power of a slice is the curve at the
load with rollouts less the curve without them. A device whose price includes its energy is charged none."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from rose.pricing.borrowing.terms import Basis, Row, Stretches, Term, basis_of, in_turn, range_of
from rose.pricing.money import J_PER_KWH, MW_NS_PER_KWH, NS_PER_S
from rose.pricing.price_books.pricebook import PowerFigure, PriceBook
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import Clusters, Estimate, mean, ratio_variance, total

STRETCHES_MIN = 3  #: Stretches of five minutes on each side of each fifth of load that an interval takes.
TOO_SHORT = "read for too short a time: it takes fifteen minutes on each side of each fifth of load"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metered:
    """Power readings of a class's serving devices, in milliwatt-nanoseconds. The baseline is all energy while not lent,
    and while lent the mean of the same load not lent. `extra` is the rest."""

    device_class: str
    delta_mw: Fraction
    interval: Interval | None  #: 95%, milliwatts; None where a side was read in fewer than `STRETCHES_MIN` stretches.
    energy_mw_ns: int
    baseline_mw_ns: int
    extra_mw_ns: int

    def __post_init__(self) -> None:
        assert self.baseline_mw_ns + self.extra_mw_ns == self.energy_mw_ns


def measure(device_class: str, readings: Iterable[Row]) -> Metered | None:
    """Compare readings within load bins; None if no bin has both sides. `readings` have `load_bin`, `lent`,
    `energy_mw_ns`, `duration_ns` and, for the interval, the columns of `Clusters` (milliwatt-seconds and seconds).
    Lent time in a bin with one side gets the mean dP of the others."""
    by_bin: dict[int, dict[bool, Row]] = defaultdict(dict)
    for row in readings:
        by_bin[row["load_bin"]][row["lent"]] = row
    both = [sides for sides in by_bin.values() if len(sides) == 2]
    if not both:
        return None
    compared_ns = sum(int(sides[True]["duration_ns"]) for sides in both)
    delta_mw = sum((_energy_beyond(sides[True], sides[False]) for sides in both), Fraction(0)) / compared_ns
    energy = baseline = 0
    for sides in by_bin.values():
        energy += sum(int(row["energy_mw_ns"]) for row in sides.values())
        if False in sides:
            baseline += int(sides[False]["energy_mw_ns"])
        if True in sides:
            lent = sides[True]
            extra = _energy_beyond(lent, sides[False]) if False in sides else delta_mw * int(lent["duration_ns"])
            baseline += int(lent["energy_mw_ns"]) - round(extra)
    return Metered(
        device_class=device_class,
        delta_mw=delta_mw,
        interval=_interval(both, compared_ns),
        energy_mw_ns=energy,
        baseline_mw_ns=baseline,
        extra_mw_ns=energy - baseline,
    )


def metered(readings: Iterable[Row]) -> dict[str, Metered]:
    by_class: dict[str, list[Row]] = defaultdict(list)
    for row in readings:
        by_class[row["device_class"]].append(row)
    measured = {device_class: measure(device_class, own) for device_class, own in sorted(by_class.items())}
    return {device_class: meter for device_class, meter in measured.items() if meter is not None}


def load_points(book: PriceBook) -> list[float]:
    """Return the loads strictly between 0 and 1 at which the book's power curves bend."""
    return sorted({float(load) for figure in book.power for load, _ in figure.points if 0 < load < 1})


def energy(lent: Sequence[Row], leased: Sequence[Row], readings: Mapping[str, Metered], stretches: Stretches) -> Term:
    """Return the energy term. `lent` and `leased` are rows of `lent_time` and `lease_spans`. Raises PriceBookError for
    a class without readings and without power in the book."""
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
        if (measured := readings.get(device_class)) is not None:
            own = [row for row in leased if row["device_class"] == device_class]
            charges = (Fraction(row["leased_ns"], NS_PER_S) * (rates[row["segment"]] or 0) for row in own)
            usd_per_w = sum(charges, Fraction(0))
            usd += measured.delta_mw / 1000 * usd_per_w
            delta = Estimate.between(measured.delta_mw, measured.interval)
            if delta is None:
                no_interval.append(f"power of {device_class}: {TOO_SHORT}")
            else:
                estimates.append(delta.times(float(usd_per_w / 1000)).widened(*tariff))
            bases.append("measured")
            how.append(_explained(measured))
            continue
        figure, points, cost = book.power_of(device_class), load_points(book), Fraction(0)
        for row in (row for row in lent if row["device_class"] == device_class):
            for segment, times in stretches.divide(row, "ns", "base_ns", "busy_ns"):
                cost += extra_joules(figure, points, row, times) * (rates[segment] or 0)
        usd += cost
        if figure.has_range:
            known = Estimate(float(cost), float(cost), float(cost))
            estimates.append(known.widened(*range_of([figure])).widened(*tariff))
        else:
            no_interval.append(f"power of {device_class} is assumed, and the price book gives no range for it")
        bases.append("assumed")
        how.append(f"{device_class}: {figure.load_w - figure.idle_w} W from idle to full load, assumed")
        if unknown_ns := sum(row["unexplained_ns"] for row in lent if row["device_class"] == device_class):
            how.append(f"whose engine started for {unknown_ns / NS_PER_S:,.1f} s of it is unknown")
    drawn = "; ".join(how) or "nothing was lent"
    return Term(
        usd=usd,
        basis=basis_of(bases),
        explained=f"{drawn}; " + in_turn(f"PUE {price.pue}, ${price.usd_per_kwh}/kWh" for price in tariffs),
        interval=None if no_interval else total(estimates),
        no_interval="; ".join(no_interval) or None,
    )


def extra_joules(figure: PowerFigure, points: Sequence[float], row: Row, times: Mapping[str, Fraction]) -> Fraction:
    """Return the curve at the busy load less that at the base load, exact over summed slices of one straight piece."""
    edges = [Fraction(0), *(Fraction(str(point)) for point in points), Fraction(1)]

    def drawn(piece: int, working_ns: Fraction) -> Fraction:
        low, high = edges[piece], edges[piece + 1]
        from_w, to_w = figure.watts(low), figure.watts(high)
        return from_w * times["ns"] + (to_w - from_w) / (high - low) * (working_ns - low * times["ns"])

    return (drawn(row["busy_piece"], times["busy_ns"]) - drawn(row["base_piece"], times["base_ns"])) / NS_PER_S


def _energy_beyond(lent: Row, unlent: Row) -> Fraction:
    mean_mw = Fraction(int(unlent["energy_mw_ns"]), int(unlent["duration_ns"]))
    return int(lent["energy_mw_ns"]) - mean_mw * int(lent["duration_ns"])


def _interval(both: Sequence[Mapping[bool, Row]], compared_ns: int) -> Interval | None:
    delta, variances = 0.0, []
    for sides in both:
        weight = int(sides[True]["duration_ns"]) / compared_ns
        for lent, row in sides.items():
            if "clusters" not in row:
                return None
            y, x = int(row["energy_mw_ns"]) / NS_PER_S, int(row["duration_ns"]) / NS_PER_S
            clusters = Clusters.from_row(row)
            variance = ratio_variance(y, x, clusters)
            if variance is None or clusters.count < STRETCHES_MIN:
                return None
            delta += weight * y / x * (1 if lent else -1)
            variances.append((weight**2 * variance, clusters.count - 1))
    return total([mean(delta, variances)])


def _usd_per_joule(book: PriceBook, device_class: str, at_ns: int) -> Fraction | None:
    """Return tariff times PUE for a serving device; None where its price covers its energy."""
    if book.device_at(device_class, "serving", at_ns).energy_included:
        return None
    electricity = book.electricity_at(at_ns)
    return Fraction(electricity.usd_per_kwh) * Fraction(electricity.pue) / J_PER_KWH


def _explained(measured: Metered) -> str:
    kwh = [float(Fraction(e, MW_NS_PER_KWH)) for e in (measured.baseline_mw_ns, measured.extra_mw_ns)]
    span = ""
    if measured.interval is not None and measured.interval.high is not None:
        span = f" ({measured.interval.low / 1000:+.1f} to {measured.interval.high / 1000:+.1f})"
    return (
        f"{measured.device_class}: {float(measured.delta_mw) / 1000:+.1f} W{span} while lent, metered; "
        f"{kwh[0]:.6g} kWh would have been drawn anyway and {kwh[1]:.6g} kWh were extra"
    )
