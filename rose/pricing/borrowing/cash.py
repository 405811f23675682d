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

from collections.abc import Iterable, Mapping
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

    `decided` are rows of `scale_downs`. Time in which the device was in the fleet all the same is left out, and what is
    less than a unit of what can be bought. Raises PriceBookError for a class without a price.
    """
    from_ns, to_ns = allocation.period_ns
    provisioned = [(device.device_id, device.t0_ns, device.t1_ns) for device in allocation.devices]
    usd = Fraction(0)
    for row in decided:
        t0_ns, t1_ns = max(row["t0_ns"], from_ns), min(row["t1_ns"], to_ns)
        if row["decision"] != "let_go" or t0_ns >= t1_ns:
            continue
        there_ns = sum(
            max(0, min(t1_ns, left_ns) - max(t0_ns, joined_ns))
            for device_id, joined_ns, left_ns in provisioned if device_id == row["device_id"]
        )  # fmt: skip
        price = book.device_at(row["device_class"], "rollout", t0_ns)
        away_hours = Fraction(max(0, t1_ns - t0_ns - there_ns), NS_PER_HOUR)
        if price.bought_in_hours is not None:
            away_hours = away_hours // Fraction(price.bought_in_hours) * Fraction(price.bought_in_hours)
        usd += away_hours * Fraction(price.usd_per_hour)
    return usd
