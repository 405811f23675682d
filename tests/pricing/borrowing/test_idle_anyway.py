from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from rose.pricing.borrowing.scale_down import Span
from rose.pricing.stats.bootstrap import Interval
from tests.pricing.borrowing.test_marginal import T0_NS, S, book, priced


def test_a_probability_charges_its_share_and_its_range_is_in_the_charge(sample: Path) -> None:
    likely = book(("idle_anyway = true", "idle_anyway = 0.75\nidle_anyway_low = 0.5\nidle_anyway_high = 1"))
    borrow = priced(sample, likely, by_lease=True)
    whole = Fraction(likely.device_at("h100-sxm", "serving", T0_NS).usd_per_hour) * 1440 / 3600
    assert (borrow.idle_anyway, borrow.avoidable_usd, borrow.unstated_usd) == (Fraction(3, 4), whole / 4, 0)
    assert sum(lease.avoidable_usd for lease in borrow.leases) == whole / 4
    assert borrow.avoidable_interval == Interval(low=0, high=float(whole / 2))
    assert borrow.charged_interval is not None
    assert borrow.interval is not None
    assert borrow.charged_interval.high is not None
    assert borrow.interval.high is not None
    assert borrow.charged_interval.high - borrow.interval.high > 0.4
    # A span takes the rest: leased time that would not have been paid for if the fleet was there.
    span = Span("s0", T0_NS, T0_NS + 600 * S)
    price = Fraction(likely.device_at("h100-sxm", "serving", T0_NS).usd_per_hour)
    assert priced(sample, likely, [span]).avoidable_usd == whole / 4 + Fraction(3, 4) * price * 600 / 3600


def test_where_the_book_is_silent_nothing_is_charged_and_what_hangs_on_it_is_known(sample: Path) -> None:
    silent = book(("idle_anyway = true", ""))
    borrow = priced(sample, silent)
    assert (borrow.idle_anyway, borrow.avoidable_usd) == (None, 0)
    assert borrow.unstated_usd == Fraction(silent.device_at("h100-sxm", "serving", T0_NS).usd_per_hour) * 1440 / 3600
