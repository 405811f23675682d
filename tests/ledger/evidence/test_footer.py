"""Footers that lie of rows that are as they were written: readers would leave the rows out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rose.ledger import examine, layout, segments
from rose.ledger.evidence import footer
from rose.ledger.evidence.content import ranges_sha256, rows_sha256
from rose.ledger.growth import compaction
from rose.ledger.layout import LedgerError
from tests.ledger.evidence import ledgers


def _of_the_footer(content: bytes, old: bytes, new: bytes) -> bytes:
    """The bytes with `new` in the place of `old`, as long, in the footer."""
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert old in content[begin:]
    return content[:begin] + content[begin:].replace(old, new)


@pytest.mark.parametrize("state", ["live", "compacted"])
def test_statistics_that_hide_rows_are_named(tmp_path: Path, state: str) -> None:
    root = layout.create(tmp_path / "ledger")
    ledgers.write(root, "a", epochs=2)
    if state == "compacted":
        compaction.compact(root, grace_s=0)
    pattern = "live/a/000000/000001-*.parquet" if state == "live" else "compacted/a/*.parquet"
    (path,) = root.glob(pattern)
    content = path.read_bytes()
    # A text of Thrift: its length and its bytes.
    lying = _of_the_footer(content, b"\x05power", b"\x05zzzzz")
    forged = tmp_path / "forged.parquet"
    forged.write_bytes(lying)
    hidden = duckdb.execute(f"SELECT count(*) FROM read_parquet('{forged}') WHERE kind = 'power'").fetchone()
    assert hidden == (0,), "a reader trusts them"
    wrong = "the statistics of column 'kind' are not those of its values"
    if state == "live":
        assert examine.segment(content, segments.sha256_in(path.name)).fault is None
        assert wrong in str(examine.segment(lying, hashlib.sha256(lying).hexdigest()).fault)
    else:
        manifest = path.with_suffix(".json").read_bytes()
        assert examine.rows(content, manifest) == examine.Rows(None)
        of_lying = manifest.replace(examine.sha256_of(content).encode(), examine.sha256_of(lying).encode())
        assert wrong in str(examine.rows(lying, of_lying).fault)


def _table(texts: list[str | None]) -> pa.Table:
    rows = len(texts)
    columns: dict[str, Any] = {
        "seq": range(rows),
        "text": texts,
        "truth": [None, *[n % 2 == 0 for n in range(1, rows)]],
    }
    return pa.table(columns | {"number": [float("nan"), *map(float, range(1, rows))], "none": pa.nulls(rows, "int64")})


def test_what_honest_writers_say_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for letter in ("x", "é", "\U0010ffff"):
        for length in (1, 254, 255, 256, 300, 5000):
            table = _table([None, letter * length, "a", letter * length + "b", ""])
            pq.write_table(table, path, row_group_size=2)
            first = ranges_sha256(path.read_bytes(), [0])
            options = "FORMAT parquet, WRITE_BLOOM_FILTER false"
            with duckdb.connect() as connection:
                connection.execute(f"COPY (FROM '{path}') TO '{tmp_path}/copy.parquet' ({options})")
                assert ranges_sha256((tmp_path / "copy.parquet").read_bytes(), [0]) == first


@pytest.mark.parametrize(
    ("options", "structure"),
    [
        ({"write_statistics": False}, "the statistics of column 'text'"),
        ({"write_statistics": ["seq", "truth", "number", "none"]}, "the statistics of column 'text'"),
        ({"write_page_index": True}, "the page index of column 'text'"),
        ({"bloom_filter_options": {"text": True}}, "the Bloom filter of column 'text'"),
    ],
)
def test_what_this_version_cannot_read_is_not_checked(options: dict[str, Any], structure: str) -> None:
    """Nothing says that it was changed, and the rows are held against their digest all the same."""
    table = _table(["a", "b"])
    content = _parquet(table, **options)
    digests, unchecked = ranges_sha256(content, [0])
    assert digests == [rows_sha256(table)]
    assert structure in unchecked
    assert structure in footer.check_file(content)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, **options)
    return bytes(buffer.getvalue().to_pybytes())


def _columns(count: int) -> dict[str, pa.Array]:
    """A column of each type that Parquet can store."""
    days = pa.array(range(-5, count - 5), pa.int32()).cast(pa.date32())
    numbers = [-0.0, 0.0, float("nan"), float("inf"), *(n / 7 for n in range(count - 4))]
    texts = [None, "\U0010ffff" * 70, *(f"{n}é" for n in range(count - 2))]
    columns = {
        str(kind): pa.array([None, *(n % 100 for n in range(count - 1))], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    }
    columns |= {f"time[{unit}]": pa.array(range(count), pa.timestamp(unit)) for unit in ("ms", "us", "ns")}
    columns |= {f"decimal[{digits}]": pa.array(range(count), pa.decimal128(digits, 0)) for digits in (9, 18, 38)}
    columns |= {"float": pa.array(numbers, pa.float32()), "double": pa.array(numbers), "date": days}
    columns |= {"whole": pa.array([2**63 - 1, -(2**63), *range(count - 2)]), "string": pa.array(texts)}
    columns |= {"binary": pa.array([bytes([n % 100]) * 2 for n in range(count)])}
    columns |= {"fixed": columns["binary"].cast(pa.binary(2)), "dictionary": columns["string"].dictionary_encode()}
    columns |= {"bool": pa.array([None, *(n % 2 == 0 for n in range(count - 1))]), "none": pa.nulls(count, pa.int64())}
    return columns | {"list": pa.array([[n, None] for n in range(count)])}


_ARROW: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0"},
    {"row_group_size": 7},
    {"use_dictionary": False, "store_schema": False},
    {"write_page_index": True},
    {"write_statistics": False},
    {"bloom_filter_options": {"column": True}},
]


def test_a_lie_beside_what_cannot_be_read_is_named() -> None:
    content = _parquet(pa.table({"seq": [0, 1], "text": ["power", "power"]}), write_page_index=True)
    lying = _of_the_footer(content, b"\x05power", b"\x05zzzzz")
    with pytest.raises(LedgerError, match="the statistics of column 'text' are not those of its values"):
        ranges_sha256(lying, [0])
