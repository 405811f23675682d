from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose import clock
from rose.clock import Anchor, both_ns


def test_an_anchor_turns_a_monotonic_reading_into_utc() -> None:
    anchor = Anchor.take()
    before = time.time_ns()
    found = anchor.utc_ns(clock.monotonic_ns())
    assert abs(found - before) < 5 * 10**9
    assert anchor.utc_us(10**9) == anchor.utc_ns(10**9) // 1000


@pytest.mark.parametrize("first", range(3))
def test_two_clocks_are_read_at_once_whatever_comes_between(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """As a switch to another process would, which can come before any reading."""
    ahead_ns = time.time_ns() - time.monotonic_ns()
    names = ("monotonic_ns", "time_ns", "monotonic_ns")
    read, number = getattr(time, names[first]), itertools.count()

    def switched() -> int:
        if next(number) == first // 2:
            time.sleep(0.05)
        return read()  # type: ignore[no-any-return]

    monkeypatch.setattr(time, names[first], switched)
    monotonic, utc = both_ns()
    assert next(number) > first // 2
    assert abs(utc - monotonic - ahead_ns) < 20_000_000


@given(st.integers(0, 4 * 10**18))
def test_a_time_is_shown_to_the_microsecond_without_rounding_up(ns: int) -> None:
    shown = clock.utc(ns)
    assert shown == clock.iso(ns // 1000)
    at = datetime.fromisoformat(shown)
    assert at.tzinfo is not None
    assert (at - datetime(1970, 1, 1, tzinfo=UTC)) // (at - at).resolution == ns // 1000
