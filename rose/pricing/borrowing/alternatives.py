"""What the borrowed tokens would have cost otherwise, and where borrowing stops being worth it [D].

The same useful rollout tokens, T, are priced

- on dedicated devices, at the ledger's own dedicated throughput, waste and price: T * dollars / useful tokens there.
  Twice: for working time only, and with what idle, syncs and activation cost those devices (fully loaded). Where no
  dedicated device made any, at the book's price of a rollout device for the time that was borrowed, marked assumed;
- at each market offer of the book for a class of device that made them: T / (tau * (1 - w)) device-seconds at its
  price, tau and w being those of the class on dedicated devices, or else on borrowed ones without their losses. A spot
  device is taken back l times an hour and loses the turns it was at: T / (tau * (1 - w) * (1 - l * a / 3600)), where a
  is the mean age of a turn at a random instant, E[L^2] / (2 E[L]) over the lengths L of completed turns, seconds;
- not at all: nothing is spent and T tokens are not made. The serving devices cost the same.

These are amortized: device time at its price, and capacity avoided is what the first way comes to. Time is what the run
measured, at the price of a device of one's own, also where others held the devices with it and paid for their part.
What each would have added to the bill is worked out in `cash`, and what borrowing saved against it in `savings`, view
by view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rose.pricing import formulas
from rose.pricing.answers.cost_per_correct import Groups
from rose.pricing.borrowing.cash import Bought
from rose.pricing.borrowing.made import Made, made, together
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.savings import DEDICATED, LOADED, NOTHING, Alternative, saved
from rose.pricing.borrowing.terms import Stretches, range_of
from rose.pricing.charges import Charges
from rose.pricing.charges.allocation import Allocation
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, NS_PER_S
from rose.pricing.price_books.pricebook import Offer, PriceBook
from rose.pricing.run.token_spread import Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """Where borrowing stops paying against one alternative. None: it does not by that figure alone."""

    usd_per_million_useful: Fraction
    usd_per_device_hour: Fraction
    #: Wasted share of borrowed tokens; None where even no waste would not help, or the borrow cost nothing.
    wasted_share: Fraction | None
    #: Dollars for each GB sent to serving devices; None where nothing was sent, or it would have to be below 0.
    usd_per_gb: Fraction | None
    #: The provision, per borrowed device-hour, with the other terms as they are.
    provision_usd_per_device_hour: Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiplier:
    """[D] M = (1 + p_O g_O / (p_D g_D)) / x, the cost of a useful token with borrowing over that without."""

    throughput_gain: Fraction
    cost_ratio: Fraction
    m: float
    cheaper: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The borrow against every alternative. Tokens are useful ones made on borrowed devices."""

    tokens: int
    charged_usd: Fraction
    borrowed: Made
    #: What the borrowed tokens cost with their share of idle time and overhead, dollars.
    borrowed_loaded_usd: Fraction
    dedicated: Made
    alternatives: tuple[Alternative, ...]
    flip: Flip | None
    multiplier: Multiplier | None


def compare(
    charges: Charges,
    allocation: Allocation,
    borrow: Marginal,
    groups: Groups,
    turns: Sequence[Mapping[str, Any]],
    spreads: Mapping[str, Spread],
    *,
    market: bool = True,
) -> Comparison:
    """Price every alternative, without `market` only dedicated devices and to do without.

    `turns` are rows of `turn_lengths`, `spreads` those of the tokens' prices. Raises PriceBookError where no dedicated
    device ran and the book has no price for a rollout device of the class.
    """
    by_class = made(charges)
    borrowed = together([part for (pool, _), part in by_class.items() if pool == "serving"])
    own = {key: part for key, part in by_class.items() if key[0] in ("rollout", "train")}
    dedicated = together(list(own.values()))
    stretches = Stretches.over(charges.book, allocation.period_ns)
    borrowed_loaded_usd = Fraction(allocation.in_pools("serving").fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
    if dedicated.useful:
        loaded = Fraction(allocation.in_pools("rollout", "train").fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
        unshared = dedicated.unshared_usd / dedicated.usd if dedicated.usd else Fraction(1)
        ways = [
            Alternative(
                name=name,
                usd=usd * borrowed.useful / dedicated.useful,
                basis="measured",
                explained=f"{dedicated.useful:,} useful tokens cost ${float(usd):.6g} there"
                + ("" if unshared == 1 else ", had no other run held the devices with it"),
            )
            for name, usd in ((DEDICATED, dedicated.unshared_usd), (LOADED, loaded * unshared))
        ]
        needed_ns = dedicated.hardware_ns * borrowed.useful / dedicated.useful
    else:
        # Two that worked on a device at once stand for no more than the device did.
        room = borrowed.hardware_ns / borrowed.measured_ns if borrowed.measured_ns else Fraction(1)
        ways = [_dedicated_by_book(borrow, stretches, charges.book, room)]
        needed_ns = borrow.borrowed_ns * room
    idle_ns = _idle_ns(allocation)
    ways[0] = _bought(ways[0], needed_ns, idle_ns, _increment(own, by_class, allocation, charges.book))
    if borrowed.useful and market:
        classes = {name: part for (_, name), part in own.items() if part.useful} or {
            name: part for (pool, name), part in by_class.items() if pool == "serving" and part.generated
        }
        measured = bool(dedicated.useful)
        age_s = _age_s(turns, "dedicated" if measured else "borrowed")
        for device_class, part in sorted(classes.items()):
            ways += _market(
                device_class, part, measured, borrowed.useful, age_s, borrow, stretches, charges.book, idle_ns
            )
    nothing = (
        f"{borrowed.useful:,} useful tokens would not have been made; the serving devices would have cost the same"
    )
    ways.append(Alternative(name=NOTHING, usd=Fraction(0), basis="measured", explained=nothing))
    charged = borrow.charged_usd
    if borrowed.useful:
        ways = saved(ways, borrow, groups, spreads, borrowed_usd=borrowed.usd, borrowed_loaded_usd=borrowed_loaded_usd)
    else:
        ways = []
    return Comparison(
        tokens=borrowed.useful,
        charged_usd=charged,
        borrowed=borrowed,
        borrowed_loaded_usd=borrowed_loaded_usd,
        dedicated=dedicated,
        alternatives=tuple(ways),
        flip=_flip(ways[0], borrow, borrowed) if ways else None,
        multiplier=multiplier(borrowed.useful, dedicated.useful, charged, dedicated.usd),
    )


def _idle_ns(allocation: Allocation) -> int:
    """Idle time of the dedicated devices that did rollouts; of what several runs report as idle, this run's part."""
    dedicated = allocation.in_pools("rollout", "train")
    worked = [device for device in dedicated.devices if device.bucket_ns["rollout"]]
    names = {(device.fleet_run_id, device.device_id, device.pool, device.device_class) for device in worked}
    more = (
        (time.hardware_share - 1) * time.ns
        for time in dedicated.shared
        if time.bucket == "idle" and (time.fleet_run_id, time.device_id, time.pool, time.device_class) in names
    )
    own_ns = sum(device.bucket_ns["idle"] + device.shared_idle_ns for device in worked)
    return own_ns + round(sum(more, Fraction(0)))


def _increment(
    own: Mapping[tuple[str, str], Made],
    by_class: Mapping[tuple[str, str], Made],
    allocation: Allocation,
    book: PriceBook,
) -> Decimal | None:
    """Hours that are the least to buy, of the class that did most of the work there, else of the borrow."""
    parts = own or by_class
    if not parts:
        return None
    pool, device_class = max(parts, key=lambda key: parts[key].hardware_ns)
    pool = pool if own else "rollout"
    return book.device_at(device_class, pool, allocation.period_ns[0]).bought_in_hours


def _bought(way: Alternative, needed_ns: Fraction, idle_ns: int, increment_hours: Decimal | None) -> Alternative:
    """The way with what it would have added to the bill, at what an hour of it costs."""
    if way.usd is None or not needed_ns:
        return way
    bought = Bought(
        needed_ns=needed_ns,
        idle_ns=idle_ns,
        increment_hours=increment_hours,
        usd_per_device_hour=way.usd * NS_PER_HOUR / needed_ns,
    )
    return replace(way, bought=bought)


def multiplier(
    borrowed_useful: int, dedicated_useful: int, charged_usd: Fraction, dedicated_usd: Fraction
) -> Multiplier | None:
    """M of a run: x is all useful tokens over the dedicated ones. None without both, or where the bill fell."""
    if not borrowed_useful or not dedicated_useful or charged_usd < 0 or dedicated_usd <= 0:
        return None
    gain, ratio = Fraction(borrowed_useful + dedicated_useful, dedicated_useful), charged_usd / dedicated_usd
    return Multiplier(
        throughput_gain=gain,
        cost_ratio=ratio,
        m=formulas.cost_multiplier(float(gain), float(ratio)),
        cheaper=formulas.cheaper(float(gain), float(ratio)),
    )


def spot_useful_share(interruptions_per_hour: Fraction, age_s: Fraction) -> Fraction:
    """[D] 1 - l * a / 3600: what is left of an hour's work when each interruption loses the turns under way.

    Not above 0 where a device is taken back faster than it ends its turns.
    """
    return 1 - interruptions_per_hour * age_s / 3600


def _dedicated_by_book(borrow: Marginal, stretches: Stretches, book: PriceBook, room: Fraction) -> Alternative:
    usd = sum(
        (
            Fraction(book.device_at(device_class, "rollout", stretches.starts_ns[segment]).usd_per_hour)
            * ns
            / NS_PER_HOUR
            for (device_class, segment), ns in borrow.borrowed_by_stretch.items()
        ),
        Fraction(0),
    )
    return Alternative(
        name=DEDICATED,
        usd=usd * room,
        basis="assumed",
        explained="no dedicated device made any: the borrowed time at the book's price of a rollout device, as if it "
        "were as fast and wasted as much",
    )


def _market(
    device_class: str,
    part: Made,
    measured: bool,
    tokens: int,
    age_s: Fraction | None,
    borrow: Marginal,
    stretches: Stretches,
    book: PriceBook,
    idle_ns: int,
) -> list[Alternative]:
    """Every offer for a class that held in each stretch in which something was borrowed."""
    borrowed_ns = [Fraction(0)] * len(stretches.spans)
    for (_, segment), ns in borrow.borrowed_by_stretch.items():
        borrowed_ns[segment] += ns
    held = [
        {offer.commitment: offer for offer in book.offers_at(device_class, at_ns)} if ns else None
        for at_ns, ns in zip(stretches.starts_ns, borrowed_ns, strict=True)
    ]
    # Tokens that a preemption lost on a borrowed device would have been kept on one's own.
    kept = part.useful if measured else part.generated - part.stale
    hours = part.hardware_ns * tokens / (NS_PER_HOUR * kept) if kept else None
    ways = []
    for commitment in dict.fromkeys(name for offers in held if offers is not None for name in offers):
        name = f"{device_class} {commitment}"
        offers = [None if prices is None else prices.get(commitment) for prices in held]
        whole = sum(borrowed_ns, Fraction(0))
        usd, why = Fraction(0), None
        for ns, offer, prices in zip(borrowed_ns, offers, held, strict=True):
            if prices is None:
                continue
            cost, why = _offer_usd(offer, hours, age_s)
            if cost is None:
                break
            usd += cost * ns / whole
        first = next(offer for offer in offers if offer is not None)
        ways.append(
            _bought(
                Alternative(
                    name=name,
                    usd=None if why else usd,
                    basis="price book" if measured else "assumed",
                    explained=_explained(first, hours, age_s, measured),
                    why=why,
                    range=range_of(offer for offer in offers if offer is not None),
                ),
                _needed_ns(first, hours, age_s),
                idle_ns,
                first.bought_in_hours,
            )
        )
    return ways


def _offer_usd(
    offer: Offer | None, hours: Fraction | None, age_s: Fraction | None
) -> tuple[Fraction | None, str | None]:
    """What these device-hours cost at an offer, or why that cannot be said."""
    if offer is None:
        return None, "not enough data: the price book has no such offer for part of the time"
    if hours is None:
        return None, "not enough data: no token of the class was of use, so its throughput is not known"
    if not offer.interruptions_per_hour:
        return Fraction(offer.usd_per_hour) * hours, None
    if age_s is None:
        return None, "not enough data: no turn was completed, so what an interruption loses is not known"
    share = spot_useful_share(Fraction(offer.interruptions_per_hour), age_s)
    if share <= 0:
        return None, f"nothing would get done: {offer.interruptions_per_hour} interruptions an hour end every turn"
    return Fraction(offer.usd_per_hour) * hours / share, None


def _needed_ns(offer: Offer, hours: Fraction | None, age_s: Fraction | None) -> Fraction:
    """Device time at an offer, with what interruptions lose; 0 where it is not known."""
    share = Fraction(1)
    if offer.interruptions_per_hour:
        share = Fraction(0) if age_s is None else spot_useful_share(Fraction(offer.interruptions_per_hour), age_s)
    return Fraction(0) if hours is None or share <= 0 else hours * NS_PER_HOUR / share


def _explained(offer: Offer, hours: Fraction | None, age_s: Fraction | None, measured: bool) -> str:
    text = f"${offer.usd_per_hour} per device-hour"
    if hours is not None:
        text += f" for {float(hours):,.4g} device-hours"
    if offer.interruptions_per_hour and age_s is not None:
        text += f"; {offer.interruptions_per_hour} interruptions an hour, each losing {float(age_s):.3g} s of work"
    return text + ("" if measured else "; throughput of borrowed devices, assumed")


def _age_s(turns: Sequence[Mapping[str, Any]], placement: str) -> Fraction | None:
    """E[L^2] / (2 E[L]) of completed turns, seconds; those elsewhere where there are none of the placement."""
    rows = [row for row in turns if row["placement"] == placement] or list(turns)
    ns = sum(int(row["ns"]) for row in rows)
    return Fraction(sum(int(row["squared_ns"]) for row in rows), 2 * ns * NS_PER_S) if ns else None


def _flip(way: Alternative, borrow: Marginal, borrowed: Made) -> Flip | None:
    """Where borrowing would add as much to the bill as this way, one figure changed at a time."""
    added = way.added_usd
    if added is None or not borrow.borrowed_ns or not borrowed.useful or not borrowed.generated:
        return None
    charged, hours = borrow.charged_usd, Fraction(borrow.borrowed_ns, NS_PER_HOUR)
    # With waste w the borrow makes generated * (1 - w) useful tokens, worth the way's price of one each.
    wasted = 1 - charged * borrowed.useful / (borrowed.generated * added) if added else None
    spare = added - charged
    sent_gb = Fraction(borrow.sent_bytes, 10**9)
    per_gb = (borrow.terms["transfer"].usd + spare) / sent_gb if sent_gb else None
    return Flip(
        usd_per_million_useful=added * 10**6 / borrowed.useful,
        usd_per_device_hour=added / hours,
        wasted_share=wasted if wasted is not None and 0 <= wasted < 1 else None,
        usd_per_gb=per_gb if per_gb is not None and per_gb >= 0 else None,
        provision_usd_per_device_hour=(borrow.terms["provision"].usd + spare) / hours,
    )
