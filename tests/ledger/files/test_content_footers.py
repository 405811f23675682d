"""Footers that lie of rows that are as they were written: readers would leave the rows out."""

import hashlib

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rose.ledger.files import examine, layout, segments
from rose.ledger.files.content import check_footers, ranges_sha256, rows_sha256
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import compaction
from rose.ledger.ledger import Ledger
from tests.ledger.evidence import ledgers


def _of_the_footer(content, old, new):
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert old in content[begin:]
    return content[:begin] + content[begin:].replace(old, new)


@pytest.mark.parametrize("state", ["live", "compacted"])
def test_statistics_that_hide_rows_are_named(tmp_path, state):
    root = layout.create(tmp_path / "ledger")
    ledgers.write(root, "a", epochs=2)
    if state == "compacted":
        compaction.compact(Ledger(root), grace_s=0)
    (path,) = root.glob("live/a/000000/000001-*.parquet" if state == "live" else "compacted/a/*.parquet")
    content = path.read_bytes()
    lying = _of_the_footer(content, b"\x05power", b"\x05zzzzz")
    forged = tmp_path / "forged.parquet"
    forged.write_bytes(lying)
    hidden = duckdb.execute(f"SELECT count(*) FROM read_parquet('{forged}') WHERE kind = 'power'").fetchone()
    assert hidden == (0,), "a reader trusts them"
    wrong = "the statistics of column 'kind' do not match its values"
    if state == "live":
        assert examine.segment(content, segments.sha256_in(path.name)).fault is None
        assert wrong in str(examine.segment(lying, hashlib.sha256(lying).hexdigest()).fault)
    else:
        manifest = path.with_suffix(".json").read_bytes()
        assert examine.rows(content, manifest) == examine.Segment(None, None)
        of_lying = manifest.replace(examine.sha256_of(content).encode(), examine.sha256_of(lying).encode())
        assert wrong in str(examine.rows(lying, of_lying).fault)


def _table(texts):
    rows = len(texts)
    columns = {"seq": range(rows), "text": texts, "truth": [None, *[n % 2 == 0 for n in range(1, rows)]]}
    return pa.table(columns | {"number": [float("nan"), *map(float, range(1, rows))], "none": pa.nulls(rows, "int64")})


def test_what_honest_writers_say_is_taken(tmp_path):
    path = tmp_path / "rows.parquet"
    for letter in ("x", "é", "\U0010ffff"):
        for length in (1, 254, 255, 256, 300, 5000):
            pq.write_table(_table([None, letter * length, "a", letter * length + "b", ""]), path, row_group_size=2)
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
def test_what_this_version_cannot_read_is_not_checked(options, structure):
    """Nothing says that it was changed, and the rows are held against their digest all the same."""
    table = _table(["a", "b"])
    content = ledgers.parquet(table, **options)
    digests, unchecked = ranges_sha256(content, [0])
    assert digests == [rows_sha256(table)]
    assert structure in unchecked
    assert structure in check_footers(content)


def test_a_lie_beside_what_cannot_be_read_is_named():
    content = ledgers.parquet(pa.table({"seq": [0, 1], "text": ["power", "power"]}), write_page_index=True)
    lying = _of_the_footer(content, b"\x05power", b"\x05zzzzz")
    with pytest.raises(LedgerError, match="the statistics of column 'text' do not match its values"):
        ranges_sha256(lying, [0])
