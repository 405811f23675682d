from __future__ import annotations

import json
from pathlib import Path

import pytest

from rose.events import Ledger
from rose.ledger import layout, segments
from rose.ledger.evidence import links
from rose.ledger.evidence.content import chain_sha256
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.layout import LedgerError
from rose.ledger.writer import LedgerWriter
from tests.ledger.evidence import ledgers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = layout.create(tmp_path / "ledger")
    ledgers.write(made, "a", epochs=3)
    return made


def test_they_are_the_chain_of_content(root: Path) -> None:
    value, next_seq = "", 0
    found = list(links.back(root, "a"))[::-1]
    assert [link.next_seq - link.first_seq for link in found] == [0, 2, 2] * 3
    for link in found:
        header = segments.read_header((root / link.path).read_bytes())
        assert (header.rows_sha256, header.chain_sha256, header.key) == (link.rows_sha256, link.value, link.key)
        value = chain_sha256(value, "a", next_seq, link.last_seq, link.rows_sha256)
        next_seq = link.next_seq
        assert link.value == value


@pytest.mark.long
def test_they_stay_the_same_whatever_becomes_of_the_files(root: Path) -> None:
    before = [(link.path, link.next_seq, link.value, link.key) for link in links.back(root, "a")]
    compaction.compact(root, grace_s=0)
    compaction.compact(root, grace_s=0)
    assert "compacted/a/000000-000001.parquet" in {link.file for link in links.back(root, "a")}
    assert [(link.path, link.next_seq, link.value, link.key) for link in links.back(root, "a")] == before
    rollup.roll_up(root)
    archive.archive(root, older_than_days=1, to=f"{root}-away", delete=True, grace_s=0)
    assert "archived/a/000000-000001.json" in {link.file for link in links.back(root, "a")}
    assert [(link.path, link.next_seq, link.value, link.key) for link in links.back(root, "a")] == before


def test_the_text_of_an_event_is_not_taken_for_a_header(root: Path) -> None:
    forged = json.dumps({"writer": "w", "first_seq": 0, "last_seq": 99, "chain_sha256": "0" * 64, "rows_sha256": "0"})
    with LedgerWriter.open(root, "w", "r") as writer:
        writer.record(Ledger(action=forged, detail_json=forged))
    newest = links.newest(root, "w")
    assert newest is not None
    assert newest.last_seq == 0


def test_a_file_that_is_none_is_named(root: Path) -> None:
    newest = links.newest(root, "a")
    assert newest is not None
    (root / newest.path).write_bytes(b"PAR1")
    with pytest.raises(LedgerError, match=f"{newest.path} is damaged"):
        links.newest(root, "a")
    compaction_of = root / "compacted" / "a"
    compaction_of.mkdir(parents=True)
    (compaction_of / "000000-000002.json").write_text("{}")
    with pytest.raises(LedgerError, match=r"compacted/a/000000-000002.json is damaged"):
        list(links.back(root, "a"))
