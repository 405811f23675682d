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
from rose.ledger.evidence.content import ranges_sha256
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
        assert examine.rows_fault(content, manifest) is None
        of_lying = manifest.replace(examine.sha256_of(content).encode(), examine.sha256_of(lying).encode())
        assert wrong in str(examine.rows_fault(lying, of_lying))


def _with_filters(tmp_path: Path) -> tuple[bytes, bytes]:
    """A merged file as older versions wrote it, with the filters that DuckDB makes by itself, and its manifest."""
    root = layout.create(tmp_path / "ledger")
    ledgers.write(root, "a", epochs=4, power_mw=lambda seq: seq // 2 % 3)
    compaction.compact(root, grace_s=0)
    (path,) = root.glob("compacted/a/*.parquet")
    before, manifest = path.read_bytes(), path.with_suffix(".json").read_bytes()
    with duckdb.connect() as connection:
        # So few rows have too small a dictionary for a filter otherwise.
        options = "FORMAT parquet, COMPRESSION zstd, DICTIONARY_SIZE_LIMIT 100"
        connection.execute(f"COPY (FROM '{path}') TO '{tmp_path}/old.parquet' ({options})")
    content = (tmp_path / "old.parquet").read_bytes()
    return content, manifest.replace(examine.sha256_of(before).encode(), examine.sha256_of(content).encode())


def _offsets(content: bytes) -> dict[str, int]:
    """Where the filter of each column lies, of those that have one."""
    group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
    chunks = [group.column(place) for place in range(group.num_columns)]
    return {chunk.path_in_schema: chunk.bloom_filter_offset for chunk in chunks if chunk.bloom_filter_offset}


def test_a_filter_of_an_older_version_is_sound_and_one_that_hides_rows_is_named(tmp_path: Path) -> None:
    content, manifest = _with_filters(tmp_path)
    offsets = _offsets(content)
    assert {"kind", "power_mw", "source"} <= set(offsets)
    assert examine.rows_fault(content, manifest) is None
    header = 3 * b"\x1c\x1c\x00\x00" + b"\x00"
    begin = content.index(header, offsets["power_mw"]) + len(header)
    lying = content[:begin] + bytes(32) + content[begin + 32 :]
    (tmp_path / "lying.parquet").write_bytes(lying)
    hidden = duckdb.execute(
        f"SELECT count(*) FROM read_parquet('{tmp_path}/lying.parquet') WHERE power_mw = 1"
    ).fetchone()
    assert hidden == (0,), "a reader trusts it"
    of_lying = manifest.replace(examine.sha256_of(content).encode(), examine.sha256_of(lying).encode())
    assert "the Bloom filter of column 'power_mw' hides some of its values" in str(examine.rows_fault(lying, of_lying))


@pytest.mark.parametrize("rows", [1, 40, 3000])
def test_filters_that_libraries_make_have_all_values(tmp_path: Path, rows: int) -> None:
    numbers = [float("nan"), -0.0, 0.0, *(n / 7 for n in range(rows))]
    table = pa.table({"seq": range(len(numbers)), "number": numbers, "text": [None, *map(str, numbers[1:])]})
    pq.write_table(table, tmp_path / "arrow.parquet", bloom_filter_options={"seq": True, "text": True, "number": True})
    with duckdb.connect() as connection:
        connection.execute(f"COPY (FROM '{tmp_path}/arrow.parquet') TO '{tmp_path}/duckdb.parquet'")
    for name in ("arrow", "duckdb"):
        content = (tmp_path / f"{name}.parquet").read_bytes()
        ranges_sha256(content, [0], bloom_filters=True)


def _table(texts: list[str | None]) -> pa.Table:
    rows = len(texts)
    columns: dict[str, Any] = {
        "seq": range(rows),
        "text": texts,
        "truth": [None, *[n % 2 == 0 for n in range(1, rows)]],
    }
    return pa.table(columns | {"number": [float("nan"), *map(float, range(1, rows))], "none": pa.nulls(rows, "int64")})


@pytest.mark.parametrize("letter", ["x", "é", "\U0010ffff"])
@pytest.mark.parametrize("length", [1, 254, 255, 256, 300, 5000])
def test_what_honest_writers_say_is_taken(tmp_path: Path, letter: str, length: int) -> None:
    table = _table([None, letter * length, "a", letter * length + "b", ""])
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, row_group_size=2)
    first = ranges_sha256(path.read_bytes(), [0])
    options = "FORMAT parquet, WRITE_BLOOM_FILTER false"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (FROM '{path}') TO '{tmp_path}/copy.parquet' ({options})")
        assert ranges_sha256((tmp_path / "copy.parquet").read_bytes(), [0]) == first


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"write_statistics": False}, "statistics of column"),
        ({"write_statistics": ["seq", "truth", "number", "none"]}, "statistics of column 'text'"),
        ({"write_page_index": True}, "has an index of pages"),
        ({"bloom_filter_options": {"text": True}}, "column 'text' has a Bloom filter"),
    ],
)
def test_what_no_writer_makes_is_refused(options: dict[str, Any], wrong: str) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(_table(["a", "b"]), buffer, **options)
    with pytest.raises(LedgerError, match=wrong):
        ranges_sha256(buffer.getvalue().to_pybytes(), [0])
