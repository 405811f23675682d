"""Cash saved and capacity avoided as two figures, each with what it rests on; they are never added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from rose.pricing.borrowing.alternatives import Comparison
from rose.pricing.borrowing.cash import Bought
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.savings import Alternative, Saving
from rose.pricing.borrowing.terms import basis_of
from rose.pricing.figures import AMORTIZED, MARGINAL, Figure, Figures
from rose.pricing.money import format_ns, format_usd, nano_usd_of

NO_TOKENS = "not enough data: no useful token was made on borrowed devices"
#: What cash saved depends on where the price book is silent.
WOULD, WOULD_NOT = "if the fleet would have been there anyway", "if it would not"


@dataclass(frozen=True, kw_only=True, slots=True)
class Savings:
    """What borrowing kept off the bill, and what it stood in for. `rests_on` has a sentence for each of the two."""

    #: The borrowed useful tokens on dedicated devices at their amortized price: hypothetical, on no bill.
    capacity_avoided: Figure
    #: The bill without borrowing less the bill; below zero where borrowing cost more.
    cash_saved: Figure
    #: Both ends of it by `WOULD` and `WOULD_NOT`, where the price book does not say; else empty.
    cash_saved_if: Mapping[str, Figure]
    #: Device time that the tokens would have taken on dedicated devices, and what of those sat idle.
    needed: Figure
    idle: Figure
    #: What the tokens would have added to the bill there, and what borrowing added.
    added_there: Figure
    added: Figure
    rests_on: Mapping[str, str]


def savings(make: Figures, comparison: Comparison, m: Marginal) -> Savings:
    """The two figures of a comparison whose first way is dedicated devices; m is what the borrow was charged."""
    way = comparison.alternatives[0] if comparison.alternatives else None
    bought = None if way is None else way.bought
    cash = None if way is None else way.cash
    basis = basis_of([m.basis] if way is None else [way.basis, m.basis])
    single = cash if not m.unstated_usd else None
    return Savings(
        capacity_avoided=make.money(
            None if way is None else way.usd,
            AMORTIZED,
            basis=way.basis if way else "measured",
            why=NO_TOKENS,
            interval=None if way is None else way.interval,
            no_interval=None if way is None else way.no_interval,
        ),
        cash_saved=make.money(
            None if single is None else single.usd,
            MARGINAL,
            basis=basis,
            why=both_ends(cash, m) or NO_TOKENS,
            interval=None if single is None else single.interval,
            no_interval=None if single is None else single.no_interval,
        ),
        cash_saved_if={}
        if cash is None or not m.unstated_usd
        else {
            WOULD: make.money(cash.usd, MARGINAL, basis=basis, interval=cash.interval, no_interval=cash.no_interval),
            WOULD_NOT: make.money(
                cash.usd - m.unstated_usd, MARGINAL, basis=basis, no_interval="it is the far end of what is possible"
            ),
        },
        needed=make.number(None if bought is None else round(bought.needed_ns), "ns", why=NO_TOKENS),
        idle=make.number(None if bought is None else bought.idle_ns, "ns", why=NO_TOKENS),
        added_there=make.money(
            None if way is None else way.added_usd, MARGINAL, basis=way.basis if way else "measured", why=NO_TOKENS
        ),
        added=make.money(
            m.charged_usd, MARGINAL, basis=m.basis, interval=m.charged_interval, no_interval=m.no_interval
        ),
        rests_on={
            "capacity_avoided": _capacity(way),
            "cash_saved": NO_TOKENS
            if bought is None
            else f"{purchase(bought)}; {_let_go(m)}; less "
            f"{_usd(m.charged_usd)} that borrowing added to the bill{condition(m)}",
        },
    )


def both_ends(cash: Saving | None, m: Marginal) -> str | None:
    """Why cash saved is no single figure, with its ends; None where it is one."""
    if cash is None or not m.unstated_usd:
        return None
    return (
        f"{_usd(cash.usd)} {WOULD}, {_usd(cash.usd - m.unstated_usd)} {WOULD_NOT}: the price book states no idle_anyway"
    )


def condition(m: Marginal) -> str:
    """What the charge of the borrow holds under, as the end of a sentence; empty where the price book is certain."""
    if m.idle_anyway is None:
        return f", {WOULD}: the price book does not say"
    if m.idle_anyway == 1:
        return ", as the price book states that the fleet would have been there anyway"
    return f", as the price book gives the fleet {float(m.idle_anyway):.0%} to have been there anyway"


def purchase(bought: Bought) -> str:
    """What the tokens would have made the fleet buy, in words."""
    needed, idle, beyond = (format_ns(round(ns)) for ns in (bought.needed_ns, bought.idle_ns, bought.beyond_ns))
    if not bought.bought_ns:
        return f"dedicated devices would have taken {needed} and sat idle for {idle}, so nothing would have been bought"
    units = ""
    if bought.increment_ns is not None and bought.increment_hours is not None:
        hours = f"{bought.increment_hours.normalize():f}"
        units = f", {bought.bought_ns / bought.increment_ns} x {hours} device-hour{'' if hours == '1' else 's'}"
    return (
        f"dedicated devices would have taken {needed} and sat idle for {idle}; the other {beyond} would have been "
        f"bought{units}, at {_usd(bought.usd_per_device_hour)} an hour, {_usd(bought.usd)}"
    )


def _let_go(m: Marginal) -> str:
    if m.on_fleet:
        return "dedicated devices that recorded decisions let go count for the fleet, not for a run on it"
    if not m.let_go_usd:
        return "no recorded decision of the run let a dedicated device go"
    return f"{_usd(m.let_go_usd)} of dedicated devices that recorded decisions let go"


def _capacity(way: Alternative | None) -> str:
    if way is None or way.bought is None:
        return NO_TOKENS
    took = format_ns(round(way.bought.needed_ns))
    assumed = " (assumed as fast as borrowed ones)" if way.basis == "assumed" else ""
    return (
        f"{took} of dedicated devices{assumed} at {_usd(way.bought.usd_per_device_hour)} an hour; hypothetical: nobody "
        "would have been billed for it"
    )


def _usd(usd: Fraction) -> str:
    return format_usd(nano_usd_of(usd))
