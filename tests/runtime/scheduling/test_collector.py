"""Python's garbage collector where turns are answered."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rose.runtime.scheduling import collector


@pytest.fixture
def own_collector() -> Iterator[None]:
    """A collector whose settings are put back."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class _Cycle:
    """What only the collector frees."""

    freed = 0

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        type(self).freed += 1


@pytest.mark.usefixtures("own_collector")
def test_what_was_loaded_is_left_alone_and_what_turns_leave_is_freed_in_time():
    gc.collect()
    collector.spare()
    assert gc.get_freeze_count() > 10_000
    made = 4 * gc.get_threshold()[0]
    for _ in range(made):
        _Cycle()
    assert 0 < made - _Cycle.freed <= 2 * gc.get_threshold()[0]
