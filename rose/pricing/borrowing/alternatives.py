"""Three alternatives to borrowing (docs/pricing.md): the same tokens on dedicated devices, the same tokens on devices
offered in the market, or no such tokens. For each RL run, all dedicated devices of the fleet count, not only those of
the run. So the runs' figures add up to the fleet's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

import polars as pl

from rose.pricing.borrowing.savings import DEDICATED, LOADED, NOTHING, Alternative, Bought, saved
from rose.pricing.charges import Charges
from rose.pricing.charges.allocation import shared
from rose.pricing.marginal_cost.terms import Row, Stretches, range_of
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, NS_PER_S
from rose.pricing.period import nanoseconds
from rose.pricing.price_books.pricebook import Offer
from rose.pricing.query import rows
from rose.pricing.run.priced import PricedRun
from rose.pricing.run.tokens import USEFUL, RolloutOutput, rollout_outputs, together

_DEDICATED = ("rollout", "train")


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Borrowing and its alternatives, dedicated devices first. The tuple is empty if no borrowed token was useful."""

    borrowed: RolloutOutput
    dedicated: RolloutOutput
    alternatives: tuple[Alternative, ...]

    @property
    def way(self) -> Alternative | None:
        return self.alternatives[0] if self.alternatives else None


def compare(run: PricedRun, *, market: bool = True) -> Comparison:
    """Compare a run's borrowing with its alternatives. `market` adds the price book's offers. Raises PriceBookError."""
    allocation, m = run.allocation, run.borrow
    whole = run.charged if run.charged.fleet is None else replace(run.charged, frame=run.charged.fleet, fleet=None)
    by_class, of_fleet = rollout_outputs(run.charged), rollout_outputs(whole)
    borrowed = together([part for (pool, _), part in by_class.items() if pool == "serving"])
    own = {key: part for key, part in of_fleet.items() if key[0] in _DEDICATED}
    elsewhere = together(list(own.values()))
    stretches = Stretches.over(run.book, allocation.period_ns)
    if elsewhere.useful:
        loaded = whole.fully_loaded().filter(pl.col("pool").is_in(_DEDICATED), work="rollout")
        loaded_usd = Fraction(int(loaded["loaded_nano"].sum()), NANO_USD_PER_USD)
        unshared = elsewhere.unshared_usd / elsewhere.usd if elsewhere.usd else Fraction(1)
        without_others = "" if unshared == 1 else ", without other runs on the devices"
        ways = [
            Alternative(
                name,
                usd * borrowed.useful / elsewhere.useful,
                "measured",
                f"{elsewhere.useful:,} useful tokens cost ${float(usd):.6g} there{without_others}",
            )
            for name, usd in ((DEDICATED, elsewhere.unshared_usd), (LOADED, loaded_usd * unshared))
        ]
        needed_ns = elsewhere.hardware_ns * borrowed.useful / elsewhere.useful
    else:
        # Two runs that worked on a device at once replace no more than one device.
        room = borrowed.hardware_ns / borrowed.measured_ns if borrowed.measured_ns else Fraction(1)
        explained = "no dedicated device made any: borrowed time at the book's price of a rollout device, assumed to "
        explained += "be as fast and waste as much"
        usd = stretches.usd("rollout", m.borrowed_by_stretch) * room
        ways = [Alternative(DEDICATED, usd, "assumed", explained)]
        needed_ns = m.borrowed_ns * room
    need = _Need.over(run.charged, whole, set(own), "tokens" if elsewhere.useful else "ns")
    if parts := own or by_class:
        pool, device_class = max(parts, key=lambda key: parts[key].hardware_ns)
        price = run.book.device_at(device_class, pool if own else "rollout", allocation.period_ns[0])
        ways[0] = need.bought(ways[0], needed_ns, price.bought_in_hours)
    if borrowed.useful and market:
        classes = {name: part for (_, name), part in own.items() if part.useful} or {
            name: part for (pool, name), part in by_class.items() if pool == "serving" and part.generated
        }
        age_s = _age_s(rows(run.connection, "borrowing/turn_lengths"), "dedicated" if elsewhere.useful else "borrowed")
        for device_class, part in sorted(classes.items()):
            # On one's own device, tokens that a preemption lost would have been kept.
            kept = part.useful if elsewhere.useful else part.generated - part.stale
            hours = part.hardware_ns * borrowed.useful / (NS_PER_HOUR * kept) if kept else None
            ways += _market(
                device_class, hours, age_s, m.borrowed_by_stretch, stretches, need, measured=bool(elsewhere.useful)
            )
    tokens = f"{borrowed.useful:,} useful tokens would not have been made"
    without = f"{tokens}; the serving devices would have cost the same"
    ways.append(Alternative(NOTHING, Fraction(0), "measured", without))
    if borrowed.useful:
        loaded_usd = Fraction(allocation.in_pools("serving").fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
        ways = saved(ways, m, run.groups, run.cost.spreads, borrowed.usd, loaded_usd)
    dedicated = together([part for (pool, _), part in by_class.items() if pool in _DEDICATED])
    return Comparison(borrowed=borrowed, dedicated=dedicated, alternatives=tuple(ways) if borrowed.useful else ())


@dataclass(frozen=True, slots=True)
class _Need:
    """Borrowed amounts, and idle nanoseconds of dedicated devices, by UTC hour. The run borrowed `own`, and the whole
    fleet borrowed `fleet`. Amounts are useful tokens, or nanoseconds if dedicated devices made no useful token."""

    idle_ns: Mapping[int, Fraction]
    fleet: Mapping[int, int]
    own: Mapping[int, int]

    @classmethod
    def over(cls, charged: Charges, fleet: Charges, classes: set[tuple[str, str]], amount: str) -> _Need:
        """Return what the run (`charged`) and its `fleet` borrowed, in `tokens` or `ns` (`amount`). Also return the
        idle time of devices that could have worked instead. `classes` has the pools and classes of these devices. If
        `classes` is empty, rollout devices of every borrowed class could have worked instead."""
        lent = (pl.col("pool") == "serving") & (pl.col("bucket") == "rollout") & (pl.col("kind") == "capacity")
        if amount == "tokens":
            lent &= pl.col("fate").is_in(USEFUL)
        if not classes:
            classes = {("rollout", name) for name in fleet.frame.filter(lent)["device_class"].unique()}
        idle_ns: defaultdict[int, Fraction] = defaultdict(Fraction)
        idle = fleet.frame.filter(kind="capacity", bucket="idle").group_by("hour", "pool", "device_class")
        for hour, pool, device_class, ns in idle.agg(pl.col("ns").sum()).iter_rows():
            if (pool, device_class) in classes:
                idle_ns[nanoseconds(hour)] += ns
        for time in shared(fleet):
            if time.bucket == "idle" and (time.pool, time.device_class) in classes:
                idle_ns[time.hour_ns] += (time.hardware_share - 1) * time.ns
        there, own = (
            {
                nanoseconds(hour): sum_
                for hour, sum_ in part.frame.filter(lent).group_by("hour").agg(pl.col(amount).sum()).iter_rows()
                if sum_
            }
            for part in (fleet, charged)
        )
        return cls(idle_ns, there, own)

    def bought(self, way: Alternative, needed_ns: Fraction, increment_hours: Decimal | None) -> Alternative:
        """Return the alternative `way`, with the device time that must be bought for it. `needed_ns` is the device time
        that the run's borrowed tokens would take."""
        if way.usd is None or not needed_ns:
            return way
        each_ns = needed_ns / sum(self.own.values())
        idle_ns = {hour: self.idle_ns.get(hour, Fraction(0)) for hour in self.fleet}
        whole = Bought(
            hours={hour: (each_ns * amount, idle_ns[hour]) for hour, amount in self.fleet.items()},
            usd_per_device_hour=way.usd * NS_PER_HOUR / needed_ns,
            increment_hours=increment_hours,
        )
        if self.own == self.fleet:
            return replace(way, bought=whole)
        hours = {
            hour: (each_ns * amount, idle_ns[hour] * amount / self.fleet[hour]) for hour, amount in self.own.items()
        }
        return replace(way, bought=replace(whole, hours=hours, fleet=whole))


def _market(
    device_class: str,
    hours: Fraction | None,
    age_s: Fraction | None,
    borrowed_ns: Mapping[tuple[str, int], Fraction],
    stretches: Stretches,
    need: _Need,
    *,
    measured: bool,
) -> list[Alternative]:
    """Return an alternative for each market offer. An offer's prices are averaged, weighted by borrowed time."""
    weights: dict[int, Fraction] = defaultdict(Fraction)
    for (_, segment), ns in borrowed_ns.items():
        weights[segment] += ns
    offers = stretches.prices(lambda at_ns: {o.commitment: o for o in stretches.book.offers_at(device_class, at_ns)})
    held = [(offers[segment], ns / sum(weights.values())) for segment, ns in sorted(weights.items()) if ns]
    ways = []
    for commitment in dict.fromkeys(name for prices, _ in held for name in prices):
        usd, why = Fraction(0), None
        for prices, share in held:
            device_hours, why = _device_hours(offer := prices.get(commitment), hours, age_s)
            if offer is None or device_hours is None:
                break
            usd += Fraction(offer.usd_per_hour) * device_hours * share
        named = [prices[commitment] for prices, _ in held if commitment in prices]
        way = Alternative(
            name=f"{device_class} {commitment}",
            usd=None if why else usd,
            basis="price book" if measured else "assumed",
            explained=_explained(named[0], hours, age_s, measured),
            why=why,
            range=range_of(named),
        )
        needed_hours, _ = _device_hours(named[0], hours, age_s)
        ways.append(need.bought(way, (needed_hours or Fraction(0)) * NS_PER_HOUR, named[0].bought_in_hours))
    return ways


def _device_hours(
    offer: Offer | None, hours: Fraction | None, age_s: Fraction | None
) -> tuple[Fraction | None, str | None]:
    if offer is None:
        return None, "not enough data: the price book has no such offer for part of the time"
    if hours is None:
        return None, "not enough data: the class made no useful token, so its throughput is unknown"
    if not offer.interruptions_per_hour:
        return hours, None
    if age_s is None:
        return None, "not enough data: no turn was completed, so the loss of an interruption is unknown"
    # [D] The share of a spot device's time that is of use. An interruption loses `age_s` seconds of work on average.
    share = 1 - Fraction(offer.interruptions_per_hour) * age_s / 3600
    if share <= 0:
        return None, f"no work would finish: {offer.interruptions_per_hour} interruptions an hour end every turn"
    return hours / share, None


def _explained(offer: Offer, hours: Fraction | None, age_s: Fraction | None, measured: bool) -> str:
    text = f"${offer.usd_per_hour} per device-hour"
    if hours is not None:
        text += f" for {float(hours):,.4g} device-hours"
    if offer.interruptions_per_hour and age_s is not None:
        text += f"; {offer.interruptions_per_hour} interruptions an hour, each losing {float(age_s):.3g} s of work"
    return text + ("" if measured else "; throughput of borrowed devices, assumed")


def _age_s(turns: Sequence[Row], placement: str) -> Fraction | None:
    """Return the mean age in seconds of a running turn: E[L^2] / (2 E[L]). L is the length of a completed turn at
    `placement` or, if there are none, of any completed turn. Return None if no turn was completed."""
    own = [row for row in turns if row["placement"] == placement] or list(turns)
    ns = sum(int(row["ns"]) for row in own)
    return Fraction(sum(int(row["squared_ns"]) for row in own), 2 * ns * NS_PER_S) if ns else None
