import hashlib
import json
import os

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rose.events import LedgerAction
from rose.ledger.files import examine, layout, segments
from rose.ledger.files.examine import CHANGED, Seen
from rose.ledger.files.segments import chain_sha256
from rose.ledger.growth import compaction
from rose.ledger.ledger import Ledger
from tests.ledger.conftest import record
from tests.ledger.evidence.ledgers import parquet

_seqs_of_rows = st.lists(st.integers(0, 12), max_size=12)


@given(_seqs_of_rows, st.integers(0, 12), st.integers(-1, 12), st.booleans())
def test_rows_are_exactly_what_they_should_be(seqs, first, last, foreign):
    writers = ["b" if foreign and n == 0 else "a" for n in range(len(seqs))]
    table = pa.table({"writer": pa.array(writers, pa.string()), "seq": pa.array(seqs, pa.int64())})
    right = sorted(seqs) == list(range(first, last + 1)) and not (foreign and seqs)
    assert examine.rows_are(parquet(table), "a", first, max(last, first - 1)) == right


@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange_for_a_segment_or_a_manifest(content):
    found = examine.segment(content, hashlib.sha256(content).hexdigest())
    assert found.header is None
    assert (found.fault or "").startswith("a foreign file: ")
    assert examine.segment(content, "0" * 64).fault == CHANGED
    assert examine.manifest(content).said == {}


def test_a_manifest_is_checked_within_itself():
    chain = ""

    def entry(first, last, previous, sha256):
        nonlocal chain
        chain = chain_sha256(chain, "w", first, last, "0")
        places = {"file": f"live/w/{sha256}", "first_seq": first, "last_seq": last, "previous_sha256": previous}
        return {**places, "sha256": sha256, "rows_sha256": "0", "chain_sha256": chain, "key": "", "signature": ""}

    segments_of = [entry(0, 1, "", "a"), entry(2, 4, "a", "b"), entry(6, 7, "a", "c")]
    said = {"first_seq": 0, "last_seq": 5, "sha256": "f", "writer": "w"}
    found = examine.manifest(json.dumps({"segments": segments_of, **said}).encode())
    assert (found.segments, found.first.file, found.last.sha256) == (3, "live/w/a", "c")
    assert [fault.split(":")[0] for fault in found.faults] == ["live/w/c", "live/w/c"]
    assert found.said == said


def test_a_file_is_read_again_when_it_changed_and_not_otherwise(tmp_path):
    path, seen = tmp_path / "file", Seen()
    path.write_bytes(b"one")
    assert [seen.facts(path, "content", bytes) for _ in range(2)] == [b"one"] * 2
    times = path.stat().st_mtime_ns
    path.write_bytes(b"two")
    os.utime(path, ns=(times, times))
    assert seen.facts(path, "content", bytes) == b"two", "as long, and as old by what anyone can set"
    assert seen.facts(path, "length", len) == 3


def test_what_a_writer_recorded_is_read_in_order_also_after_compaction(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    root = layout.create(tmp_path / "ledger")
    told = (LedgerAction(action="moved" if n % 2 else "other", detail_json=json.dumps({"n": n})) for n in range(6))
    record(root, *told, LedgerAction(action="moved"), writer="archive")
    for _ in range(2):
        assert [detail["n"] for detail in examine.recorded(root, "archive", "moved")] == [1, 3, 5]
        compaction.compact(Ledger(root), grace_s=0)
    next(root.glob("compacted/archive/*.parquet")).write_bytes(b"")
    assert len(examine.recorded(root, "archive", "moved")) < 3
