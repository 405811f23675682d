from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from rose.runtime.transfer.package.tables import canonical, columns, pack, rows, unpack


@dataclass
class Row:
    number: int
    xxh3: str | None


class Table(msgspec.Struct):
    number: list[int]
    xxh3: str


def test_columns_are_read_back_row_by_row() -> None:
    table = columns([Row(1, "ab"), Row(2, None)], ["number"], ["xxh3"])
    assert table == {"number": [1, 2], "xxh3": "ab -"}
    assert list(rows(Table(**table), ["number"], ["xxh3"])) == [(1, "ab"), (2, None)]
    assert list(rows(Table(**columns([], ["number"], ["xxh3"])), ["number"], ["xxh3"])) == []
    with pytest.raises(ValueError, match="shorter"):
        list(rows(Table([1, 2], "ab"), ["number"], ["xxh3"]))
    with pytest.raises(ValueError, match="more hashes than the 2 rows"):
        list(rows(Table([1, 2], "ab ab ab ab"), ["number"], ["xxh3"]))


def test_what_is_packed_comes_back_and_nothing_else_does() -> None:
    content = canonical({"xxh3": " ".join(["0" * 32] * 100)})
    packed = pack(content)
    assert len(packed) < len(content) / 10
    assert unpack(packed) == content
    for wrong in (b"", b"x", packed[:-1], packed + b"x", content):
        with pytest.raises(ValueError, match="packed tables"):
            unpack(wrong)


def test_a_small_file_that_holds_too_much_is_given_up() -> None:
    packed = pack(b"x" * 100_000)
    assert unpack(packed, bytes_max=100_001) == b"x" * 100_000
    with pytest.raises(ValueError, match="hold more than 99999 bytes"):
        unpack(packed, bytes_max=99_999)


@pytest.mark.parametrize("values", [b"[],", b"10,", b'"",'])
def test_values_are_counted_while_a_small_file_is_unpacked(values: bytes) -> None:
    packed = pack(values * 1000)
    assert unpack(packed, values_max=3000) == values * 1000
    with pytest.raises(ValueError, match="or 999 values"):
        unpack(packed, values_max=999)
