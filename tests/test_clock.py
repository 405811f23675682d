from __future__ import annotations

import time
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from rose import clock
from rose.clock import Anchor


def test_an_anchor_turns_a_monotonic_reading_into_utc() -> None:
    anchor = Anchor.take()
    before = time.time_ns()
    found = anchor.utc_ns(clock.monotonic_ns())
    assert abs(found - before) < 5 * 10**9
    assert anchor.utc_us(10**9) == anchor.utc_ns(10**9) // 1000


@given(st.integers(0, 4 * 10**18))
def test_a_time_is_shown_to_the_microsecond_without_rounding_up(ns: int) -> None:
    shown = clock.utc(ns)
    assert shown == clock.iso(ns // 1000)
    at = datetime.fromisoformat(shown)
    assert at.tzinfo is not None
    assert (at - datetime(1970, 1, 1, tzinfo=UTC)) // (at - at).resolution == ns // 1000
