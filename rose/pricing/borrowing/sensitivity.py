"""What cash saved would be were one thing that it rests on at either end of its own range, all else as it is [D].

Cash saved is linear in each: in what dedicated devices would have added to the bill, in every term of m, and in the
probability that the fleet would have been there anyway. Ranges are the 95% intervals of what was measured and the price
book's own; where the book states no such probability, it runs from all to none.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.savings import Alternative
from rose.pricing.stats.bootstrap import Interval

#: What is varied besides the terms of m.
OTHERWISE, ANYWAY = "time of dedicated devices", "fleet there anyway"


@dataclass(frozen=True, kw_only=True, slots=True)
class Swing:
    """Dollars of cash saved with one thing at the worse and at the better end of its range."""

    name: str
    worse_usd: Fraction
    better_usd: Fraction

    @property
    def width_usd(self) -> Fraction:
        """How far it moves cash saved."""
        return self.better_usd - self.worse_usd


def swings(way: Alternative, m: Marginal) -> tuple[Swing, ...]:
    """How far each thing moves cash saved against a way, the furthest first; empty where it is not known."""
    if way.cash is None or way.added_usd is None:
        return ()
    cash = way.cash.usd
    made = [_by_cost(name, cash, term.usd, term.interval) for name, term in m.terms.items() if term.unknown is None]
    if (there := way.added_interval) is not None and there.high is not None:
        moved = (Fraction(end) - way.added_usd for end in (there.low, there.high))
        made.append(_swing(OTHERWISE, *(cash + more for more in moved)))
    if m.unstated_usd:
        made.append(_swing(ANYWAY, cash - m.unstated_usd, cash))
    else:
        made.append(_by_cost(ANYWAY, cash, m.avoidable_usd, m.avoidable_interval))
    known = [swing for swing in made if swing is not None and swing.width_usd]
    return tuple(sorted(known, key=lambda swing: (-swing.width_usd, swing.name)))


def _by_cost(name: str, cash: Fraction, usd: Fraction, interval: Interval | None) -> Swing | None:
    """Of something that borrowing is charged, so that more of it saves less."""
    if interval is None or interval.high is None:
        return None
    return _swing(name, *(cash + usd - Fraction(end) for end in (interval.low, interval.high)))


def _swing(name: str, one_usd: Fraction, other_usd: Fraction) -> Swing:
    return Swing(name=name, worse_usd=min(one_usd, other_usd), better_usd=max(one_usd, other_usd))
