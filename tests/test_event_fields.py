"""What declarations of fields say of themselves; what they let through is tested where events enter a ledger."""

from __future__ import annotations

import typing

import pytest

from rose import event_fields
from rose.event_fields import Range


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Share", "a number from 0 to 1"),
        ("Count", "an integer from 0 to 36028797018963967"),
        ("DurationNs", "an integer from 0 to 36028797018963967 nanoseconds"),
        ("OffsetNs", "an integer from -4611686018427387903 to 4611686018427387903 nanoseconds"),
        ("Difference", "an integer from -36028797018963967 to 36028797018963967"),
    ],
)
def test_a_range_says_what_it_wants(name: str, words: str) -> None:
    (limits,) = (mark for mark in typing.get_args(getattr(event_fields, name)) if isinstance(mark, Range))
    assert str(limits) == words
