"""Cash saved and capacity avoided: what borrowing kept off the bill, and what it stood in for [D].

T useful tokens were made on borrowed devices. On dedicated ones, at their throughput tau and wasted share w, they would
have taken H = T / (tau * (1 - w)) device-seconds.

- *Capacity avoided* = H * price of a dedicated device. Hypothetical: nobody would have been billed for it.
- *Cash saved* = what the bill would have been without borrowing, less what it is:

      bought = b * ceil(max(0, H - I) / b)
      cash saved = bought * price + let go - m - avoidable

  I is the idle time of the dedicated devices that did rollouts in the run: they were paid for, and would have made part
  of the tokens for nothing. What exceeds it would have bought device time in whole units of b, the book's
  `bought_in_hours`; where that is left out just as much as is needed, as the fleet itself is charged. *Let go* is the
  price of dedicated devices while they were given up because of borrowing; it counts by a recorded decision alone
  (`scale_down`), for as long as the device was not in the fleet, in whole units. m is what borrowing added to the bill,
  *avoidable* the serving devices kept for lending (`marginal`). Below zero, borrowing cost more cash than it saved.

The two are never added: they price the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from rose.pricing.charges.allocation import Allocation
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.stats.bootstrap import Floats

__all__ = ["Bought", "let_go_usd"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bought:
    """What one way to the borrowed tokens would have made the fleet buy."""

    #: Device time that the tokens would have taken, H, and what of it was idle and paid for, I; nanoseconds.
    needed_ns: Fraction
    idle_ns: int
    usd_per_device_hour: Fraction
    #: The least that can be bought of a device, b; None where it is bought by the time used.
    increment_hours: Decimal | None = None

    def __post_init__(self) -> None:
        assert self.needed_ns >= 0
        assert self.idle_ns >= 0
        assert self.increment_hours is None or self.increment_hours > 0

    @property
    def beyond_ns(self) -> Fraction:
        """Device time that no idle device had."""
        return max(Fraction(0), self.needed_ns - self.idle_ns)

    @property
    def increment_ns(self) -> Fraction | None:
        return None if self.increment_hours is None else Fraction(self.increment_hours) * NS_PER_HOUR

    @property
    def bought_ns(self) -> Fraction:
        """Device time that would have been bought."""
        if self.increment_ns is None:
            return self.beyond_ns
        return -((-self.beyond_ns) // self.increment_ns) * self.increment_ns

    @property
    def usd(self) -> Fraction:
        """What would have been added to the bill."""
        return self.bought_ns * self.usd_per_device_hour / NS_PER_HOUR

    def draws(self, factors: Floats) -> Floats:
        """`usd` where the device time needed is each of these multiples of what it is taken to be."""
        beyond = np.maximum(0.0, float(self.needed_ns) * factors - self.idle_ns)
        if self.increment_ns is not None:
            beyond = np.ceil(beyond / float(self.increment_ns)) * float(self.increment_ns)
        return np.asarray(beyond * float(self.usd_per_device_hour / NS_PER_HOUR), dtype=np.float64)


def let_go_usd(decided: Iterable[Mapping[str, Any]], allocation: Allocation, book: PriceBook) -> Fraction:
    """Dollars not paid within the run's period for dedicated devices that were given up because there was borrowing.

    `decided` are rows of `scale_downs` that let a device go; time that several rows name counts once. Time in which the
    device was in the fleet all the same is left out, and what of an absence is less than a unit of what can be bought.
    Every time is priced at what the book says of it. Raises PriceBookError for a class without a price.
    """
    from_ns, to_ns = allocation.period_ns
    tenures: dict[str, list[tuple[int, int]]] = {}
    for device in allocation.devices:
        tenures.setdefault(device.device_id, []).extend(device.stays_ns)
    usd = Fraction(0)
    for device_id, device_class, let_go_ns in _let_go(decided):
        within_ns = max(let_go_ns[0], from_ns), min(let_go_ns[1], to_ns)
        for t0_ns, t1_ns in _without(within_ns, tenures.get(device_id, ())):
            unit_hours = book.device_at(device_class, "rollout", t0_ns).bought_in_hours
            end_ns = Fraction(t1_ns)
            if unit_hours is not None:
                unit_ns = Fraction(unit_hours) * NS_PER_HOUR
                end_ns = t0_ns + (t1_ns - t0_ns) // unit_ns * unit_ns
            for start_ns, stop_ns in book.stretches(t0_ns, t1_ns):
                price = Fraction(book.device_at(device_class, "rollout", start_ns).usd_per_hour)
                usd += max(Fraction(0), min(end_ns, Fraction(stop_ns)) - start_ns) * price / NS_PER_HOUR
    return usd


def _let_go(decided: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, tuple[int, int]]]:
    """Device, its class and [t0_ns, t1_ns) of every time in which one was let go, none of which overlap."""
    spans: list[tuple[str, str, tuple[int, int]]] = []
    for row in sorted(decided, key=lambda row: (row["device_id"], row["t0_ns"], row["t1_ns"], row["device_class"])):
        device_id, device_class, t0_ns, t1_ns = (row[n] for n in ("device_id", "device_class", "t0_ns", "t1_ns"))
        if spans and spans[-1][0] == device_id and spans[-1][2][1] >= t0_ns:
            before_ns = spans[-1][2]
            if spans[-1][1] == device_class:
                spans[-1] = (device_id, device_class, (before_ns[0], max(before_ns[1], t1_ns)))
                continue
            t0_ns = before_ns[1]
        if t0_ns < t1_ns:
            spans.append((device_id, device_class, (t0_ns, t1_ns)))
    return spans


def _without(span_ns: tuple[int, int], taken_ns: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What of a span is in none of those taken, in order."""
    t0_ns, t1_ns = span_ns
    for from_ns, to_ns in sorted(taken_ns):
        if t0_ns < min(from_ns, t1_ns):
            yield t0_ns, min(from_ns, t1_ns)
        t0_ns = max(t0_ns, to_ns)
    if t0_ns < t1_ns:
        yield t0_ns, t1_ns
