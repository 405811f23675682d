"""From what the borrowed tokens would cost on dedicated devices to what borrowing added to the bill, part by part [D].

Per useful token a place costs (price of a device-hour) x (device-hours for a generated token) x (generated for a useful
token). Going from dedicated to borrowed devices, one factor is changed after the other, in this order; what each change
brings is a part, and the last sum is the borrowed device time at its amortized price. That device time is paid for
whether or not it is lent, so it is taken off; what borrowing really added (the terms of m, and device time that would
not have been there otherwise) is put on. The parts are rounded together, so that they add up to the nano-dollar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rose.ledger.examine import Seen
from rose.pricing.borrowing import alternatives
from rose.pricing.borrowing.alternatives import Comparison
from rose.pricing.borrowing.made import Made
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report.common import Head, head
from rose.pricing.borrowing.report.savings import NO_TOKENS
from rose.pricing.borrowing.terms import Basis
from rose.pricing.charges.allocation import Allocation
from rose.pricing.figures import AMORTIZED, MARGINAL
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, format_usd, nano_usd_of, rounded
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.run.priced import priced

DEDICATED, BORROWED, ADDED = "on dedicated devices", "borrowed, amortized", "what borrowing added to the bill"
PRICE, SPEED, WASTE = "price of a device-hour", "speed of the devices", "tokens that came to nothing"
PAID_ANYWAY, AVOIDABLE = "paid for anyway", "kept for lending"
_AS_DEDICATED = "assumed to be as on borrowed devices: no dedicated device made a token"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A step of the waterfall, or (`whole`) what all steps so far come to. `nano` None: it is not known, and `why`."""

    name: str
    nano: int | None
    view: str
    basis: Basis
    why: str
    whole: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """One reason why a useful token costs another amount borrowed than dedicated: borrowed over dedicated."""

    name: str
    times: Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Waterfall:
    """`parts` begin and end with a whole; empty where `missing` says why there are none."""

    head: Head
    #: Useful tokens made on borrowed devices.
    tokens: int
    parts: tuple[Part, ...]
    #: Of a fully loaded useful token; their product is `loaded_times`. Empty where a place made none.
    loaded: tuple[Factor, ...]
    missing: str | None
    #: What is not among the parts because it is not known, in sentences.
    unknown: tuple[str, ...]

    @property
    def loaded_times(self) -> Fraction:
        product = Fraction(1)
        for factor in self.loaded:
            product *= factor.times
        return product

    @property
    def loaded_says(self) -> str:
        """Why fully loaded borrowed tokens cost more or less than dedicated ones; empty where that is not known."""
        if not self.loaded:
            return ""
        reasons = ", ".join(f"{factor.name} x {float(factor.times):.3g}" for factor in self.loaded)
        most = max(self.loaded, key=lambda factor: factor.times)
        text = f"Fully loaded, a useful token cost {float(self.loaded_times):.3g} times as much borrowed as dedicated: "
        text += f"{reasons}."
        if self.loaded_times > 1:
            text += f" Most of it is the {most.name}."
        return (
            f"{text} Fully loaded charges idle time to whatever ran that day. It is paid for with or without lending, "
            "so it is no reason against it."
        )


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
    seen: Seen | None = None,
) -> Waterfall:
    """The waterfall of a run. Raises what `rose.pricing.run.priced.priced` raises."""
    with priced(root, run_id, price_book, allow_unverified, seen) as run:
        comparison = alternatives.compare(
            run.charged, run.allocation, run.borrow, run.groups, [], run.cost.spreads, market=False
        )
        return Waterfall(
            head=head(run),
            tokens=comparison.tokens,
            parts=parts(comparison, run.borrow),
            loaded=loaded_factors(comparison, run.allocation),
            missing=None if comparison.tokens else NO_TOKENS,
            unknown=tuple(_unknown(run.borrow)),
        )


def parts(comparison: Comparison, m: Marginal) -> tuple[Part, ...]:
    """From dedicated devices to the marginal cost; empty where nothing useful was borrowed."""
    if not comparison.alternatives:
        return ()
    way, borrowed = comparison.alternatives[0], comparison.borrowed
    assert way.usd is not None
    changes = _changes(comparison) if way.basis == "measured" else {PRICE: borrowed.usd - way.usd}
    known: dict[str, Fraction] = {DEDICATED: way.usd, **changes, PAID_ANYWAY: -borrowed.usd}
    known |= {name: term.usd for name, term in m.terms.items() if term.unknown is None}
    if m.avoidable_usd:
        known[AVOIDABLE] = m.avoidable_usd
    nano = rounded({name: usd * NANO_USD_PER_USD for name, usd in known.items()})

    def step(name: str, view: str, basis: Basis, why: str) -> Part:
        return Part(name=name, nano=nano.get(name), view=view, basis=basis, why=why)

    def whole(name: str, names: Iterable[str], view: str, basis: Basis, why: str) -> Part:
        return Part(name=name, nano=sum(nano[part] for part in names), view=view, basis=basis, why=why, whole=True)

    speeds = {
        PRICE: "an hour of the device that is lent costs another amount than one of a dedicated device",
        SPEED: "tokens that a device makes in an hour of rollouts",
        WASTE: "tokens that were stale, lost or made again; their cost is in the price of the others",
    }
    terms = [
        step(
            name,
            MARGINAL,
            term.basis,
            term.explained if term.unknown is None else _missing(term.unknown, term.explained),
        )
        for name, term in m.terms.items()
    ]
    return (
        whole(DEDICATED, [DEDICATED], AMORTIZED, way.basis, f"hypothetical: {way.explained}"),
        *(step(name, AMORTIZED, way.basis, why if name in nano else _AS_DEDICATED) for name, why in speeds.items()),
        whole(BORROWED, [DEDICATED, *changes], AMORTIZED, "measured", "borrowed device time at its amortized price"),
        step(PAID_ANYWAY, AMORTIZED, "price book", "serving's devices are paid for whether or not they are lent"),
        *terms,
        *(
            [step(AVOIDABLE, MARGINAL, "price book", "device time that would not have been paid for without lending")]
            if AVOIDABLE in nano
            else []
        ),
        whole(ADDED, nano, MARGINAL, m.basis, "the marginal cost of the borrowed tokens"),
    )


def loaded_factors(comparison: Comparison, allocation: Allocation) -> tuple[Factor, ...]:
    """What a fully loaded useful token costs, borrowed over dedicated, factor by factor."""
    borrowed, dedicated = comparison.borrowed, comparison.dedicated
    own = allocation.in_pools("rollout", "train")
    loaded_usd = Fraction(own.fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
    if not (_whole(borrowed) and _whole(dedicated) and loaded_usd and comparison.borrowed_loaded_usd):
        return ()
    ours, theirs = _per_token(borrowed, borrowed.usd), _per_token(dedicated, dedicated.usd)
    names = ("price of a device-hour", "device time for a token", "tokens made for a useful one")
    more = (comparison.borrowed_loaded_usd / borrowed.usd) / (loaded_usd / dedicated.usd)
    return (
        *(Factor(name=name, times=one / other) for name, one, other in zip(names, ours, theirs, strict=True)),
        Factor(name="idle time and overhead on top", times=more),
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


def _missing(why: str, explained: str) -> str:
    return explained if why == "absent" else f"{why}; {explained}"


def _unknown(m: Marginal) -> Iterable[str]:
    terms: Mapping[str, str] = {
        name: _missing(term.unknown, term.explained) for name, term in m.terms.items() if term.unknown is not None
    }
    for name, why in terms.items():
        yield f"{name.replace('_', ' ')}: {why}"
    if m.unstated_usd:
        yield (
            f"{AVOIDABLE}: the price book does not state idle_anyway, whether the fleet would have been there without "
            f"lending; if not, {format_usd(nano_usd_of(m.unstated_usd))} more"
        )
