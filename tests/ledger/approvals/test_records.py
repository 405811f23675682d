from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from rose.ledger import layout
from rose.ledger.approvals import records
from rose.ledger.evidence import keys
from rose.ledger.growth import compaction
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify
from tests.ledger.approvals.conftest import by_hand


def _append(root: Path, action: str, **body: Any) -> None:
    with records.exclusive(root):
        records.append(root, action, body)


def test_what_was_recorded_is_read_in_order_with_who_signed_it(root: Path, identity: Any) -> None:
    assert records.read(root) == []
    _append(root, "held", n=1)
    with identity("ben"):
        _append(root, "held", n=2)
    first, second = records.read(root)
    assert [first.body, second.body] == [{"n": 1}, {"n": 2}]
    assert (first.fault, second.fault) == (None, None)
    assert first.key != second.key
    assert "@" in first.by
    assert verify(root).problems == []


@pytest.mark.parametrize("field", ["body", "by", "key", "signature"])
def test_what_its_key_did_not_sign_is_at_fault(root: Path, field: str) -> None:
    _append(root, "approved", proposal="p")
    path = next((root / "live" / "controls" / "000000").glob("000001-*.parquet"))
    (_, _, action, text), *_ = records._rows_of(path, path.stem.partition("-")[2], ())
    detail = json.loads(text or "")
    other = {"body": {"proposal": "q"}, "by": "eve@host", "key": "ab" * 32, "signature": "cd" * 64}
    by_hand(root, action, {**detail, field: other[field]})
    assert [record.fault for record in records.read(root)] == [None, "its signature is wrong, or missing"]


def test_what_was_signed_as_one_thing_is_not_another(root: Path) -> None:
    _append(root, "approved", proposal="p")
    path = next((root / "live" / "controls" / "000000").glob("000001-*.parquet"))
    (_, _, _, text), *_ = records._rows_of(path, path.stem.partition("-")[2], ())
    by_hand(root, "carried out", text)
    assert [record.fault is None for record in records.read(root)] == [True, False]


def test_what_was_signed_for_one_ledger_counts_in_no_other(root: Path, tmp_path: Path) -> None:
    _append(root, "approved", proposal="p")
    other = Path(shutil.copytree(root, tmp_path / "other"))
    marker = json.loads((other / layout.MARKER).read_bytes())
    (other / layout.MARKER).write_text(json.dumps({**marker, "id": "0" * 32}))
    assert [record.fault for record in records.read(other)] == ["its signature is wrong, or missing"]


def test_whoever_has_no_key_records_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(keys.VARIABLE, str(tmp_path / "file" / "key"))
    with pytest.raises(LedgerError, match=keys.VARIABLE):
        records.signing_key()


@pytest.mark.long
def test_all_are_read_while_they_are_merged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.ledger.segments.SEGMENTS_PER_EPOCH", 2)
    ended = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not ended.is_set():
            seen.append(len(records.read(root)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(8):
            _append(root, "held", n=n)
            compaction.compact(root, grace_s=0)
    finally:
        ended.set()
        reader.join()
    assert [record.body["n"] for record in records.read(root)] == list(range(8))
    assert seen == sorted(seen)
    assert len(seen) > 1


def test_without_its_head_the_newest_may_be_missing_which_is_an_error(root: Path) -> None:
    for n in range(2):
        _append(root, "held", n=n)
    sorted((root / "live" / "controls").rglob("*.parquet"))[-1].unlink()
    (root / "heads" / "controls.json").unlink()
    with pytest.raises(LedgerError, match=r"cannot be read \(heads/controls.json"):
        records.read(root)


def test_events_that_are_missing_are_an_error_and_not_fewer_events(root: Path, tmp_path: Path) -> None:
    for n in range(3):
        _append(root, "held", n=n)
    segments = sorted((root / "live" / "controls" / "000000").glob("*.parquet"))
    for path in segments[1:]:
        copy = Path(shutil.copytree(root, tmp_path / path.stem))
        (copy / path.relative_to(root)).unlink()
        with pytest.raises(LedgerError, match="cannot be read"):
            records.read(copy)
