from __future__ import annotations

from dataclasses import dataclass

import pytest

from rose.runtime.transfer.package.tables import canonical, columns, pack, rows, unpack


@dataclass
class Row:
    number: int
    xxh3: str | None


def test_columns_are_read_back_row_by_row() -> None:
    table = columns([Row(1, "ab"), Row(2, None)], ["number"], ["xxh3"])
    assert table == {"number": [1, 2], "xxh3": "ab -"}
    assert list(rows(table, ["number"], ["xxh3"])) == [(1, "ab"), (2, None)]
    assert list(rows(columns([], ["number"], ["xxh3"]), ["number"], ["xxh3"])) == []
    with pytest.raises(ValueError, match="shorter"):
        list(rows({"number": [1, 2], "xxh3": "ab"}, ["number"], ["xxh3"]))


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
    with pytest.raises(ValueError, match="hold more than 99999"):
        unpack(packed, bytes_max=99_999)
