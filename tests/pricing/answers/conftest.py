from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rose.pricing.charges.allocation import ALL_BUCKETS, TIME_BUCKETS, DeviceCost
from rose.pricing.run.cost_per_correct import LINES, TokenCost
from rose.pricing.run.tokens import Spread
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.uncertainty import Estimate

#: Prices of a token that are known exactly.
EXACT = {"borrowed": Spread(0, 1), "dedicated": Spread(0, 1)}


def token_cost(by_line: tuple[Any, ...], share: Fraction | float, useful: int, **changes: Any) -> TokenCost:
    """Costs of a token on each of LINES, all known exactly: useful tokens, and the borrowed share of them."""
    lines: Mapping[str, Fraction | None] = dict(zip(LINES, map(Fraction, by_line), strict=True))
    plain: Any = {"paid": {}, "borrow": Estimate(2.0, 2.0, 2.0), "no_borrow_interval": None, "spreads": EXACT}
    return TokenCost(by_line=lines, borrowed_share=Fraction(share), useful=useful, **(plain | changes))


def device_cost(device_id: str, pool: str, t0_ns: int, t1_ns: int, **changes: Any) -> DeviceCost:
    """A device without time or dollars, but for what is given by bucket."""
    plain: dict[str, Any] = {"fleet_run_id": "run", "device_class": "h100-sxm", "fully_loaded_nano_usd": {}}
    plain |= {"bucket_ns": dict.fromkeys(TIME_BUCKETS, 0), "amortized_nano_usd": dict.fromkeys(ALL_BUCKETS, 0)}
    return DeviceCost(device_id=device_id, pool=pool, t0_ns=t0_ns, t1_ns=t1_ns, **(plain | changes))


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    assert interval.high is not None
    return interval.low, interval.high


def width(interval: Interval | None) -> float:
    low, high = ends(interval)
    return high - low
