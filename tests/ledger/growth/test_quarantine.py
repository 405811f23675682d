from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rose.ledger import catalog, layout, segments
from rose.ledger.growth import compaction
from rose.ledger.growth.quarantine import quarantine
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, lease: Any) -> Path:
    """A ledger with one compacted file and an open epoch, ten events in all."""
    root = tmp_path_factory.mktemp("pristine") / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 4)
        for first in (0, 6):
            with LedgerWriter.open(root, "w", "r") as writer:
                for n in range(first, first + 5):
                    writer.record(lease(lease_id=f"l{n}"))
            compaction.compact(root, grace_s=0)
        compaction.compact(root, grace_s=0)
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "ledger"))


def _damage(path: Path) -> str:
    """Cut off the footer, without which DuckDB can read nothing."""
    path.write_bytes(path.read_bytes()[:-4])
    return path.name


def _count(root: Path) -> int:
    with catalog.connect(root) as connection:
        found = connection.execute("SELECT count(*) FROM event WHERE writer = 'w'").fetchone()
    assert found is not None
    return int(found[0])


def _segment(root: Path) -> Path:
    return sorted(root.glob("live/w/*/*.parquet"))[-2]


def test_reading_goes_on_without_a_damaged_segment_and_verification_says_what_is_missing(root: Path) -> None:
    before, path = _count(root), _segment(root)
    name = str(path.relative_to(root))
    _damage(path)
    with pytest.raises(duckdb.Error, match="No magic bytes"):
        _count(root)
    assert quarantine(root, [name]) == [f"quarantine/{name}"]
    assert 0 < _count(root) < before
    assert any("a segment is missing" in problem or "a gap in seq" in problem for problem in verify(root).problems)
    with catalog.connect(root) as connection:
        (said,) = connection.execute("SELECT detail_json FROM event WHERE action = 'quarantined'").fetchall()
    assert json.loads(said[0])["file"] == name


def test_a_compacted_file_goes_with_its_manifest(root: Path) -> None:
    path = next(root.glob("compacted/w/*.parquet"))
    _damage(path)
    quarantine(root, [str(path)])
    assert not list(root.glob(f"compacted/w/{path.stem}*"))
    assert len(list(root.glob(f"quarantine/compacted/w/{path.stem}.*"))) == 2
    assert _count(root) > 0
    assert any("are missing" in problem for problem in verify(root).problems)


def test_it_goes_on_after_an_interruption_and_says_it_once(root: Path) -> None:
    path = _segment(root)
    name = str(path.relative_to(root))
    _damage(path)
    layout.move_file(path, root / "quarantine" / name)  # As far as a killed one came.
    for _ in range(2):
        assert quarantine(root, [name]) == [f"quarantine/{name}"]
    with catalog.connect(root) as connection:
        assert connection.execute("SELECT count(*) FROM event WHERE action = 'quarantined'").fetchone() == (1,)


def test_several_at_once(root: Path) -> None:
    damaged = [_segment(root), next(root.glob("compacted/w/*.parquet"))]
    for path in damaged:
        _damage(path)
    assert len(quarantine(root, [str(path) for path in damaged])) == 2
    assert _count(root) > 0


def test_a_foreign_file_can_go(root: Path) -> None:
    (_segment(root).parent / "notes.parquet").write_text("not Parquet")
    quarantine(root, [str(_segment(root).parent / "notes.parquet")])
    assert verify(root).problems == []


@pytest.mark.parametrize("name", ["ledger.json", "../x", "/etc/passwd", "live/w/000000/gone.parquet"])
def test_only_files_of_the_ledger_s_parts_can_go(root: Path, name: str) -> None:
    with pytest.raises(LedgerError):
        quarantine(root, [name])
    assert not (root / "quarantine").exists()


@pytest.mark.parametrize("pattern", ["live/w/*/*.parquet", "compacted/w/*.parquet"])
def test_a_sound_file_stays(root: Path, pattern: str) -> None:
    with pytest.raises(LedgerError, match="is sound and stays"):
        quarantine(root, [str(next(root.glob(pattern)))])
    assert verify(root).problems == []
