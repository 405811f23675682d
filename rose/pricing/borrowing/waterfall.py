"""From what the borrowed tokens would cost on dedicated devices to what borrowing added to the bill, part by part [D].

Per useful token a place costs (price of a device-hour) x (device-hours for a generated token) x (generated for a useful
token). Going from dedicated to borrowed devices, one factor is changed after the other, in this order; what each change
brings is a part, and the last sum is the borrowed device time at its amortized price. That device time is paid for
whether or not it is lent, so it is taken off; what borrowing really added (the terms of m, and device time that would
not have been there otherwise) is put on. The parts are rounded together, so that they add up to the nano-dollar.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

from rose.pricing.borrowing.alternatives import Comparison, compare
from rose.pricing.borrowing.made import Made
from rose.pricing.borrowing.marginal import Marginal, plain
from rose.pricing.borrowing.report import NO_TOKENS
from rose.pricing.borrowing.terms import Term
from rose.pricing.figures import AMORTIZED, MARGINAL, Figures
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, format_usd, nano_usd_of, rounded
from rose.pricing.table import Mark, Paragraph, Row, Section, Table, columns, values

if TYPE_CHECKING:
    from rose.pricing.run.priced import PricedRun

DEDICATED, BORROWED, ADDED = "on dedicated devices", "borrowed, amortized", "what borrowing added to the bill"
PRICE, SPEED, WASTE = "price of a device-hour", "speed of the devices", "tokens that came to nothing"
PAID_ANYWAY, AVOIDABLE = "paid for anyway", "kept for lending"
TOKENS = "useful tokens borrowed"
_AS_DEDICATED = "assumed to be as on borrowed devices: no dedicated device made a token"


def waterfall(run: PricedRun) -> Section:
    """Return the steps of a run, why fully loaded tokens cost more or less, and what is not known.

    A step whose cost is not known has no value. A run that borrowed no useful token has `missing` alone.
    """
    compared = compare(run, market=False)
    if not compared.alternatives:
        return Section({"missing": Paragraph(NO_TOKENS)})
    tokens = {TOKENS: run.make.number(compared.borrowed.useful, "tokens")}
    parts: dict[str, Table | Paragraph] = {
        "steps": steps(run.make, compared, run.borrow),
        "tokens": values("What it is about", tokens, run.stamp, "counts"),
    }
    if unknown := [*_unknown(run.borrow)]:
        parts["unknown"] = Paragraph.of_lines(unknown)
    if loaded := loaded_factors(compared):
        parts["loaded"] = Paragraph(loaded_says(loaded))
    return Section(parts)


def steps(make: Figures, comparison: Comparison, m: Marginal) -> Table:
    """From dedicated devices to the marginal cost; strong rows are what all steps so far come to."""
    way, borrowed = comparison.alternatives[0], comparison.borrowed
    assert way.usd is not None
    changes = _changes(comparison) if way.basis == "measured" else {PRICE: borrowed.usd - way.usd}
    known: dict[str, Fraction] = {DEDICATED: way.usd, **changes, PAID_ANYWAY: -borrowed.usd}
    known |= {name: term.usd for name, term in m.terms.items() if term.unknown is None}
    if m.avoidable_usd:
        known[AVOIDABLE] = m.avoidable_usd
    nano = rounded({name: usd * NANO_USD_PER_USD for name, usd in known.items()})
    rows: list[Row] = []
    marks: dict[int, Mark] = {}

    def step(name: str, view: str, basis: str, why: str) -> None:
        rows.append((name, make.amount(nano.get(name), view, basis=basis, why=why), why))

    def whole(name: str, names: Iterable[str], view: str, basis: str, why: str) -> None:
        marks[len(rows)] = "strong"
        rows.append((name, make.amount(sum(nano[part] for part in names), view, basis=basis), why))

    whole(DEDICATED, [DEDICATED], AMORTIZED, way.basis, f"hypothetical: {way.explained}")
    for name, why in (
        (PRICE, "lent and dedicated hours have different prices"),
        (SPEED, "tokens that a device makes in an hour of rollouts"),
        (WASTE, "tokens that were stale, lost or made again; their cost is in the price of the others"),
    ):
        step(name, AMORTIZED, way.basis, why if name in nano else _AS_DEDICATED)
    whole(BORROWED, [DEDICATED, *changes], AMORTIZED, "measured", "borrowed device time at its amortized price")
    step(PAID_ANYWAY, AMORTIZED, "price book", "serving's devices are paid for whether or not they are lent")
    for name, term in m.terms.items():
        step(name, MARGINAL, term.basis, _why(term))
    if AVOIDABLE in nano:
        step(AVOIDABLE, MARGINAL, "price book", "device time that would not have been paid for without lending")
    whole(ADDED, nano, MARGINAL, m.basis, "the marginal cost of the borrowed tokens")
    return Table(
        title="From dedicated devices to what borrowing added to the bill",
        view="view by row",
        stamp=make.stamp,
        columns=columns("step", "cost", "why", text=("why",)),
        rows=tuple(rows),
        marks=marks,
    )


def loaded_factors(comparison: Comparison) -> dict[str, Fraction]:
    """What a fully loaded useful token costs, borrowed over dedicated, by factor; empty where a place made none."""
    borrowed, dedicated = comparison.borrowed, comparison.dedicated
    loaded, loaded_there = comparison.borrowed_loaded_usd, comparison.dedicated_loaded_usd
    if not (_whole(borrowed) and _whole(dedicated) and loaded and loaded_there):
        return {}
    ours, theirs = _per_token(borrowed, borrowed.usd), _per_token(dedicated, dedicated.usd)
    names = ("price of a device-hour", "device time for a token", "tokens made for a useful one")
    factors = {name: one / other for name, one, other in zip(names, ours, theirs, strict=True)}
    more = (loaded / borrowed.usd) / (loaded_there / dedicated.usd)
    return {**factors, "idle time and overhead on top": more}


def loaded_says(factors: dict[str, Fraction]) -> str:
    """Why fully loaded borrowed tokens cost more or less than dedicated ones."""
    times = Fraction(1)
    for factor in factors.values():
        times *= factor
    reasons = ", ".join(f"{name} x {float(factor):.3g}" for name, factor in factors.items())
    text = f"Fully loaded, a useful token cost {float(times):.3g} times as much borrowed as dedicated: {reasons}."
    if times > 1:
        text += f" Most of it is the {max(factors, key=factors.__getitem__)}."
    return (
        f"{text} Fully loaded charges idle time to whatever ran that day. It is paid for with or without lending, "
        "so it is no reason against it."
    )


def _changes(comparison: Comparison) -> dict[str, Fraction]:
    """What each factor brings when it is changed from dedicated to borrowed, those before it being changed already."""
    borrowed, dedicated = comparison.borrowed, comparison.dedicated
    now, there = _per_token(dedicated, dedicated.unshared_usd), _per_token(borrowed, borrowed.usd)
    changes = {}
    for place, name in enumerate((PRICE, SPEED, WASTE)):
        after = (*there[: place + 1], *now[place + 1 :])
        before = (*there[:place], *now[place:])
        changes[name] = (_product(after) - _product(before)) * borrowed.useful
    return changes


def _per_token(made: Made, usd: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """Dollars a device-hour, device-hours a generated token, generated tokens a useful one."""
    hours = made.hardware_ns / NS_PER_HOUR
    return usd / hours, hours / made.generated, Fraction(made.generated, made.useful)


def _whole(made: Made) -> bool:
    return bool(made.useful and made.hardware_ns and made.usd)


def _product(factors: tuple[Fraction, ...]) -> Fraction:
    one, two, three = factors
    return one * two * three


def _why(term: Term) -> str:
    return f"{term.missing}; {term.explained}" if term.missing else term.explained


def _unknown(m: Marginal) -> Iterable[str]:
    for name, term in m.terms.items():
        if term.unknown is not None:
            yield f"{plain(name)}: {_why(term)}"
    if m.unstated_usd:
        yield (
            f"{AVOIDABLE}: the price book does not state idle_anyway, whether the fleet would have been there without "
            f"lending; if not, {format_usd(nano_usd_of(m.unstated_usd))} more"
        )
