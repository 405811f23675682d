from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rose.ledger import catalog, segments
from rose.ledger.growth.compaction import compact
from rose.ledger.upkeep import vitals
from rose.ledger.upkeep.vitals import WriterState
from rose.ledger.writer import LedgerWriter


@pytest.fixture
def root(tmp_path: Path, lease: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with a writer of four epochs, and one that never recorded anything."""
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    LedgerWriter.open(tmp_path / "ledger", "silent", "r").close()
    with LedgerWriter.open(tmp_path / "ledger", "w", "r") as writer:
        for n in range(7):
            writer.record(lease(at_us=1000 - n))
    return tmp_path / "ledger"


def states(root: Path) -> dict[str, WriterState]:
    return {state.writer: state for state in vitals.writer_states(root)}


def test_how_far_a_writer_is_shows_without_a_query(root: Path) -> None:
    assert vitals.writer_states(root) == [WriterState("silent", 0, None), WriterState("w", 7, 994)]
    with catalog.connect(root) as connection:
        assert connection.execute("SELECT count(*) FROM event WHERE writer = 'w'").fetchone() == (7,)


def test_a_compaction_changes_nothing(root: Path) -> None:
    # The newest epoch has one event: without it the newest is in a merged file.
    newest = sorted((root / "live/w").iterdir())[-1]
    compact(root, grace_s=0)
    compact(root, grace_s=0)
    assert states(root)["w"] == WriterState("w", 7, 994)
    shutil.rmtree(newest)
    # A merged file holds events 0 to 5; its newest by time is its first.
    assert states(root)["w"] == WriterState("w", 6, 1000)


def test_every_byte_is_in_one_folder(root: Path) -> None:
    (root / "logs" / "run").mkdir(parents=True)
    (root / "logs" / "run" / "e.log").write_bytes(b"x" * 1234)
    found = vitals.folder_bytes(root)
    assert found["logs"] == 1234
    assert found["live"] == sum(path.stat().st_size for path in root.glob("live/*/*/*.parquet"))
    assert sum(found.values()) == sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
