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
What each would have added to the bill, and what borrowing saved against it, is worked out in `savings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from rose.pricing.borrowing.made import Made, made, together
from rose.pricing.borrowing.savings import DEDICATED, LOADED, NOTHING, Alternative, Bought, saved
from rose.pricing.borrowing.terms import Row, Stretches, range_of
from rose.pricing.charges.allocation import Allocation
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, NS_PER_S
from rose.pricing.price_books.pricebook import Offer
from rose.pricing.query import rows

if TYPE_CHECKING:
    from rose.pricing.run.priced import PricedRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The borrow against every alternative, dedicated devices first; none where it made no useful token."""

    borrowed: Made
    #: What the borrowed tokens cost with their share of idle time and overhead, dollars.
    borrowed_loaded_usd: Fraction
    dedicated: Made
    #: What dedicated devices cost with theirs.
    dedicated_loaded_usd: Fraction
    alternatives: tuple[Alternative, ...]

    @property
    def way(self) -> Alternative | None:
        """Dedicated devices."""
        return self.alternatives[0] if self.alternatives else None


def compare(run: PricedRun, *, market: bool = True) -> Comparison:
    """Price every alternative of a run, without `market` only dedicated devices and to do without.

    Raises PriceBookError where no dedicated device ran and the book has no price for a rollout device of the class.
    """
    allocation, m = run.allocation, run.borrow
    by_class = made(run.charged)
    borrowed = together([part for (pool, _), part in by_class.items() if pool == "serving"])
    own = {key: part for key, part in by_class.items() if key[0] in ("rollout", "train")}
    dedicated = together(list(own.values()))
    stretches = Stretches.over(run.book, allocation.period_ns)
    borrowed_loaded_usd, loaded_usd = (
        Fraction(allocation.in_pools(*pools).fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
        for pools in (("serving",), ("rollout", "train"))
    )
    if dedicated.useful:
        unshared = dedicated.unshared_usd / dedicated.usd if dedicated.usd else Fraction(1)
        ways = [
            Alternative(
                name=name,
                usd=usd * borrowed.useful / dedicated.useful,
                basis="measured",
                explained=f"{dedicated.useful:,} useful tokens cost ${float(usd):.6g} there"
                + ("" if unshared == 1 else ", had no other run held the devices with it"),
            )
            for name, usd in ((DEDICATED, dedicated.unshared_usd), (LOADED, loaded_usd * unshared))
        ]
        needed_ns = dedicated.hardware_ns * borrowed.useful / dedicated.useful
    else:
        # Two that worked on a device at once stand for no more than the device did.
        room = borrowed.hardware_ns / borrowed.measured_ns if borrowed.measured_ns else Fraction(1)
        ways = [_dedicated_by_book(m.borrowed_by_stretch, stretches, room)]
        needed_ns = m.borrowed_ns * room
    idle_ns = _idle_ns(allocation)
    ways[0] = _bought(ways[0], needed_ns, idle_ns, _increment(own, by_class, run))
    if borrowed.useful and market:
        classes = {name: part for (_, name), part in own.items() if part.useful} or {
            name: part for (pool, name), part in by_class.items() if pool == "serving" and part.generated
        }
        turns = rows(run.connection, "borrowing/turn_lengths")
        age_s = _age_s(turns, "dedicated" if dedicated.useful else "borrowed")
        for device_class, part in sorted(classes.items()):
            # Tokens that a preemption lost on a borrowed device would have been kept on one's own.
            kept = part.useful if dedicated.useful else part.generated - part.stale
            hours = part.hardware_ns * borrowed.useful / (NS_PER_HOUR * kept) if kept else None
            ways += _market(
                device_class, hours, age_s, m.borrowed_by_stretch, stretches, idle_ns, measured=bool(dedicated.useful)
            )
    nothing = (
        f"{borrowed.useful:,} useful tokens would not have been made; the serving devices would have cost the same"
    )
    ways.append(Alternative(name=NOTHING, usd=Fraction(0), basis="measured", explained=nothing))
    if borrowed.useful:
        ways = saved(
            ways,
            m,
            run.groups,
            run.cost.spreads,
            borrowed_usd=borrowed.usd,
            borrowed_loaded_usd=borrowed_loaded_usd,
        )
    return Comparison(
        borrowed=borrowed,
        borrowed_loaded_usd=borrowed_loaded_usd,
        dedicated=dedicated,
        dedicated_loaded_usd=loaded_usd,
        alternatives=tuple(ways) if borrowed.useful else (),
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
    own: Mapping[tuple[str, str], Made], by_class: Mapping[tuple[str, str], Made], run: PricedRun
) -> Decimal | None:
    """Hours that are the least to buy, of the class that did most of the work there, else of the borrow."""
    parts = own or by_class
    if not parts:
        return None
    pool, device_class = max(parts, key=lambda key: parts[key].hardware_ns)
    return run.book.device_at(device_class, pool if own else "rollout", run.allocation.period_ns[0]).bought_in_hours


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


def spot_useful_share(interruptions_per_hour: Fraction, age_s: Fraction) -> Fraction:
    """[D] 1 - l * a / 3600: what is left of an hour's work when each interruption loses the turns under way.

    Not above 0 where a device is taken back faster than it ends its turns.
    """
    return 1 - interruptions_per_hour * age_s / 3600


def _dedicated_by_book(
    borrowed_ns: Mapping[tuple[str, int], Fraction], stretches: Stretches, room: Fraction
) -> Alternative:
    usd = Fraction(0)
    for (device_class, segment), ns in borrowed_ns.items():
        price = stretches.book.device_at(device_class, "rollout", stretches.spans[segment][0])
        usd += Fraction(price.usd_per_hour) * ns / NS_PER_HOUR
    return Alternative(
        name=DEDICATED,
        usd=usd * room,
        basis="assumed",
        explained="no dedicated device made any: the borrowed time at the book's price of a rollout device, as if it "
        "were as fast and wasted as much",
    )


def _market(
    device_class: str,
    hours: Fraction | None,
    age_s: Fraction | None,
    borrowed_ns: Mapping[tuple[str, int], Fraction],
    stretches: Stretches,
    idle_ns: int,
    *,
    measured: bool,
) -> list[Alternative]:
    """Every offer for a class, by what was borrowed in each stretch; `hours` are what the tokens take on the class."""
    weights = [Fraction(0)] * len(stretches.spans)
    for (_, segment), ns in borrowed_ns.items():
        weights[segment] += ns
    held = [
        ({offer.commitment: offer for offer in offers}, ns / sum(weights))
        for offers, ns in zip(
            stretches.prices(lambda at_ns: stretches.book.offers_at(device_class, at_ns)), weights, strict=True
        )
        if ns
    ]
    ways = []
    for commitment in dict.fromkeys(name for offers, _ in held for name in offers):
        offers = [(prices.get(commitment), share) for prices, share in held]
        usd, why = Fraction(0), None
        for offer, share in offers:
            cost, why = _offer_usd(offer, hours, age_s)
            if cost is None:
                break
            usd += cost * share
        known = [offer for offer, _ in offers if offer is not None]
        way = Alternative(
            name=f"{device_class} {commitment}",
            usd=None if why else usd,
            basis="price book" if measured else "assumed",
            explained=_explained(known[0], hours, age_s, measured),
            why=why,
            range=range_of(known),
        )
        ways.append(_bought(way, _needed_ns(known[0], hours, age_s), idle_ns, known[0].bought_in_hours))
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


def _age_s(turns: Sequence[Row], placement: str) -> Fraction | None:
    """E[L^2] / (2 E[L]) of completed turns, seconds; those elsewhere where there are none of the placement."""
    own = [row for row in turns if row["placement"] == placement] or list(turns)
    ns = sum(int(row["ns"]) for row in own)
    return Fraction(sum(int(row["squared_ns"]) for row in own), 2 * ns * NS_PER_S) if ns else None
