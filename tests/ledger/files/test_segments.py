import dataclasses
import math
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.event_columns import all_columns
from rose.ledger.files import catalog, keys, layout, rows, segments
from rose.ledger.files.content import rows_sha256
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.segments import chain_sha256
from tests.long_form import usual


def _same(left, right):
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right and type(left) is type(right))


@settings(max_examples=usual(6, long=50), deadline=None)
@given(st.data())
def test_any_events_come_back_as_they_were_recorded(any_event, data):
    batches = data.draw(st.lists(st.lists(any_event, min_size=1, max_size=8), min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        root = layout.create(folder)
        tail = segments.begin_epoch(root, segments.recover(root, "w"))
        for batch in batches:
            first = tail.next_seq
            encoded = [(event.kind, rows.encode(event)) for event in batch]
            tail = segments.write_next(root, tail, rows.table("w", first, "r", "replay", encoded))
        with catalog.connect(root) as connection:
            cursor = connection.execute("SELECT * FROM event ORDER BY seq")
            names = [item[0] for item in cursor.description or []]
            stored = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    recorded = [event for batch in batches for event in batch]
    assert len(stored) == len(recorded)
    for seq, (event, row) in enumerate(zip(recorded, stored, strict=True)):
        given = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
        given |= {"writer": "w", "seq": seq, "event_id": f"w/{seq}", "provenance": "replay"}
        given |= {"kind": event.kind, "run_id": event.run_id or "r"}
        if "fleet_run_id" in given and given["run_id"] != "r":
            # An event of another run than its writer's is of one that shares the writer's fleet.
            given["fleet_run_id"] = given["fleet_run_id"] or "r"
        for name in all_columns():
            assert _same(row[name], given.get(name)), name


def _one(seq, lease):
    return rows.table("w", seq, "r", "live", [("lease", rows.encode(lease()))])


def test_each_segment_names_the_one_before_it_across_epochs(tmp_path, lease):
    root = layout.create(tmp_path)
    tail = segments.begin_epoch(root, segments.recover(root, "w"))
    tail = segments.write_next(root, tail, _one(0, lease))
    tail = segments.begin_epoch(root, tail)
    segments.write_next(root, tail, _one(1, lease))
    paths = sorted(root.glob("live/w/*/*.parquet"))
    headers = [segments.read_header(path.read_bytes()) for path in paths]
    assert [(header.epoch, header.index) for header in headers] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(header.first_seq, header.last_seq) for header in headers] == [(0, -1), (0, 0), (1, 0), (1, 1)]
    named = [segments.sha256_in(path.name) for path in paths]
    assert [header.previous_sha256 for header in headers] == ["", *named[:-1]]


def test_each_segment_signs_the_link_of_its_content(tmp_path, lease):
    root = layout.create(tmp_path)
    tail = segments.write_next(root, segments.begin_epoch(root, segments.recover(root, "w")), _one(0, lease))
    with pytest.raises(LedgerError, match="restore its file"):
        segments.begin_epoch(root, replace(tail, key=None))
    tail = segments.begin_epoch(root, replace(tail, key=None, signed_by=""))
    paths = sorted(root.glob("live/w/*/*.parquet"))
    headers = [segments.read_header(path.read_bytes()) for path in paths]
    link = ""
    for header, path in zip(headers, paths, strict=True):
        assert header.rows_sha256 == rows_sha256(pq.read_table(path))
        link = chain_sha256(link, "w", header.first_seq, header.last_seq, header.rows_sha256)
        assert (header.chain_sha256, segments.link(header, "").signature_fault()) == (link, None)
    key = keys.load_or_make()
    assert [header.key for header in headers] == [key.public, key.public, ""]
    assert (tail.link, tail.signed_by) == (link, "")
    other_keys = [replace(headers[0], key=public) for public in ("00" * 32, "")]
    for forged in (*other_keys, replace(headers[1], chain_sha256=link)):
        assert "its signature is not by the key" in str(segments.link(forged, "").signature_fault())


def test_a_writer_does_not_go_on_from_a_segment_that_another_signed(tmp_path, lease):
    root = layout.create(tmp_path)
    tail = segments.begin_epoch(root, segments.recover(root, "w"))
    forger = SimpleNamespace(public=tail.key.public, sign=lambda _: "00" * 64)
    segments.write_next(root, replace(tail, key=forger), _one(0, lease))
    with pytest.raises(LedgerError, match="its signature is not by the key"):
        segments.recover(root, "w")


def test_a_writer_is_found_where_it_stood(tmp_path, lease):
    root = layout.create(tmp_path)
    assert segments.recover(root, "w").epoch == -1
    tail = segments.begin_epoch(root, segments.recover(root, "w"))
    assert segments.recover(root, "w") == tail
    tail = segments.write_next(root, tail, _one(0, lease))
    (root / "live/w/000000/.half.123.tmp").write_bytes(b"what a killed process left")
    (root / "heads/.w.json.123.123.tmp").write_bytes(b"what it left beside")
    (root / "heads/w.json").unlink()
    assert segments.recover(root, "w") == tail
    assert not list(root.rglob("*.tmp"))
    assert not list(root.glob("live/w/*/.*.tmp"))
    assert segments.read_head(root, "w") is not None


def test_a_segment_is_announced_before_it_is_written(tmp_path, lease):
    root = layout.create(tmp_path)
    tail, table = segments.begin_epoch(root, segments.recover(root, "w")), _one(0, lease)
    (first,) = root.glob("live/w/*/*.parquet")
    empty = segments.Head(str(first.relative_to(root)))
    assert segments.read_head(root, "w") == empty
    away = first.parent.rename(root / "away")
    with pytest.raises(FileNotFoundError):
        segments.write_next(root, tail, table)
    head = segments.read_head(root, "w")
    away.rename(first.parent)
    assert segments.recover(root, "w") == tail
    assert segments.read_head(root, "w") == empty
    segments.write_next(root, tail, table)
    assert head == segments.Head(empty.segment, segments.read_head(root, "w").segment)


@pytest.mark.parametrize("fault", ["newest changed", "newest gone", "all gone"])
def test_a_writer_does_not_write_over_a_fault(tmp_path, lease, fault):
    root = layout.create(tmp_path)
    tail = segments.write_next(root, segments.begin_epoch(root, segments.recover(root, "w")), _one(0, lease))
    first, newest = sorted(root.glob("live/w/*/*.parquet"))
    if fault == "newest changed":
        newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    elif fault == "newest gone":
        newest.unlink()
    else:
        newest.unlink()
        first.unlink()
        first.parent.rmdir()
    with pytest.raises(LedgerError, match="use another writer name"):
        segments.recover(root, "w")
    assert tail.next_seq == 1
