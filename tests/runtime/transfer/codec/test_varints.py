from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.transfer.codec import varints
from rose.runtime.transfer.errors import TransferError


@given(st.lists(st.integers(0, 2**63 - 1), max_size=5), st.booleans())
def test_numbers_come_back_and_take_as_few_bytes_as_they_need(values: list[int], viewed: bool) -> None:
    data: bytes | memoryview = b"".join(map(varints.packed, values))
    assert len(data) == sum(max(-(-value.bit_length() // 7), 1) for value in values)
    data = memoryview(data) if viewed else data
    at = 0
    for value in values:
        found, at = varints.taken(data, at)
        assert found == value
    assert at == len(data)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 8, b"\x80" * 9 + b"\1"])
def test_what_does_not_end_is_refused(data: bytes) -> None:
    with pytest.raises(TransferError, match=f"at byte 0 of {len(data)}"):
        varints.taken(data, 0)
