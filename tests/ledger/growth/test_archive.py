import shutil
from pathlib import Path

import pytest

from rose.ledger.files import catalog, layout, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import archive as archiving
from rose.ledger.growth import compaction
from rose.ledger.growth.archive import Store, archive, restore
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import ask, flip, record
from tests.ledger.growth.conftest import DAY_US, FIRST_US, count_by_engines, days_since, details, seqs, states


def test_old_files_are_copied_and_stay_and_a_second_time_nothing_happens(root, tmp_path):
    before = seqs(root)
    done = archive(Ledger(root), older_than_days=days_since(4), to=str(tmp_path / "away"), delete=False)
    assert (done.parts, done.left, done.url) == (2, 0, f"file://{tmp_path}/away")
    copies = sorted(path for path in (tmp_path / "away").rglob("*") if path.is_file())
    assert [path.relative_to(tmp_path / "away").parts[:2] for path in copies] == [("compacted", "w")] * 4
    for path in copies:
        assert path.read_bytes() == (root / path.relative_to(tmp_path / "away")).read_bytes()
    assert [detail["deleted"] for detail in details(root, "archived")] == [False, False]
    written = [path.stat().st_mtime_ns for path in copies]
    assert archive(Ledger(root), older_than_days=days_since(4), to=str(tmp_path / "away"), delete=False) == done
    assert [path.stat().st_mtime_ns for path in copies] == written
    assert len(details(root, "archived")) == 2
    assert seqs(root) == before
    assert Ledger(root).verify().problems == []


def test_a_part_leaves_and_the_chain_still_holds(root, tmp_path, lease):
    away = tmp_path / "away"
    done = archive(Ledger(root), older_than_days=days_since(4), to=str(away), delete=True, grace_s=3600)
    assert (done.parts, done.left, done.skipped) == (2, 2, {})
    assert states(root)[:3] == ["archived", "archived", "compacted"]
    gone = done.events
    assert seqs(root) == list(range(gone, 12))
    assert len(list(root.glob("compacted/w/*.parquet"))) == 3, "running queries may still read the files"
    compaction.compact(Ledger(root), grace_s=0)
    files = {path.stem for path in root.glob("compacted/w/*.parquet")}
    assert not files & {path.stem for path in root.glob("archived/w/*.json")}
    report = next(found for found in Ledger(root).verify().writers if found.writer == "w")
    assert (report.problems, report.events, report.archived_events, report.first_seq) == ([], 12, gone, 0)
    assert ask(root, "SELECT sum(changes) FROM daily_lease")[0] == (12,), "daily sums outlive the events"
    detail = details(root, "archived")[0]
    assert detail["deleted"]
    assert detail["url"] == f"file://{away}/{detail['file']}"
    with LedgerWriter.open(root, "w", "r") as writer:
        assert writer.record(lease()) == 12
    assert Ledger(root).verify().problems == []


def test_what_was_archived_comes_back(root, tmp_path):
    archive(Ledger(root), older_than_days=1, to=str(tmp_path / "away"), delete=True, grace_s=0)
    assert not list(root.glob("compacted/w/*"))
    found = restore(Ledger(root), str(tmp_path / "nowhere"))
    assert (found.parts, len(found.missing)) == (0, 3)
    early = restore(Ledger(root), str(tmp_path / "away"), until_us=FIRST_US + 2 * DAY_US)
    assert (early.parts, early.missing, states(root)[:2]) == (1, [], ["compacted", "archived"])
    assert Ledger(root).verify().problems == []
    assert restore(Ledger(root), str(tmp_path / "away")).parts == 2
    assert restore(Ledger(root), str(tmp_path / "away")).parts == 0
    assert seqs(root) == list(range(12))
    assert Ledger(root).verify().problems == []
    assert len(details(root, "restored")) == 3
    assert archive(Ledger(root), older_than_days=1, to=str(tmp_path / "away"), delete=True, grace_s=0).left == 3
    assert Ledger(root).verify().problems == []


def test_what_is_not_rolled_up_stays(root):
    shutil.rmtree(root / "rollup")
    catalog.refresh(root)
    done = archive(Ledger(root), older_than_days=1, to=f"{root}-away", delete=True, grace_s=0)
    assert (done.parts, done.left, sum(done.skipped.values())) == (3, 0, 3)
    assert "rose jobs run roll-up" in next(iter(done.skipped))
    assert seqs(root) == list(range(12))


def test_a_missing_event_or_a_changed_manifest_of_an_archived_part_is_a_problem(root):
    path = next(iter(sorted(root.glob("compacted/w/*.json"))))
    hidden = root / "archived/w" / path.name
    layout.move_file(path, hidden)
    assert [problem for problem in Ledger(root).verify().problems if "no archive event" in problem]
    layout.move_file(hidden, path)
    archive(Ledger(root), older_than_days=1, to=f"{root}-away", delete=True, grace_s=0)
    path = next(iter(sorted(root.glob("archived/w/*.json"))))
    path.write_bytes(path.read_bytes().replace(b'"first_seq": 0', b'"first_seq": 1', 1))
    assert any(str(path.relative_to(root)) in problem for problem in Ledger(root).verify().problems)


def test_a_damaged_file_is_refused_and_nothing_leaves(root, tmp_path):
    path = next(iter(sorted(root.glob("compacted/w/*.parquet"))))
    content = flip(path, 50)
    with pytest.raises(LedgerError, match=f"{path.name} was changed"):
        archive(Ledger(root), older_than_days=1, to=str(tmp_path / "away"), delete=True, grace_s=0)
    assert "archived" not in states(root)
    path.write_bytes(content)
    assert Ledger(root).verify().problems == []


def test_a_copy_that_decayed_is_written_again_and_never_restored(root, tmp_path):
    away = tmp_path / "away"
    archive(Ledger(root), older_than_days=1, to=str(away), delete=False)
    copy = next(iter(sorted(away.rglob("*.parquet"))))
    copy.write_bytes(copy.read_bytes()[:-1])
    archive(Ledger(root), older_than_days=1, to=str(away), delete=True, grace_s=0)
    assert copy.read_bytes() != b""
    copy.write_bytes(copy.read_bytes()[:-1])
    with pytest.raises(LedgerError, match="is not the archived file"):
        restore(Ledger(root), str(away))
    assert not list(root.glob(f"compacted/w/{copy.stem}*"))


def test_two_ledgers_do_not_share_a_place(root, tmp_path, lease):
    other = tmp_path / "other"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
        record(other, *(lease(lease_id=f"o{n}", at_us=FIRST_US) for n in range(6)))
    compaction.compact(Ledger(other), grace_s=0)
    first, last = layout.parts(root, "w")[0].first, layout.parts(root, "w")[0].last
    assert (first, last) == (layout.parts(other, "w")[0].first, layout.parts(other, "w")[0].last)
    archive(Ledger(other), older_than_days=1, to=str(tmp_path / "away"), delete=False)
    with pytest.raises(LedgerError, match="is of another ledger"):
        archive(Ledger(root), older_than_days=1, to=str(tmp_path / "away"), delete=True)
    assert "archived" not in states(root)


def test_copies_of_what_was_merged_since_go(root, tmp_path, monkeypatch):
    away = tmp_path / "away"
    archive(Ledger(root), older_than_days=1, to=str(away), delete=False)
    assert len(list(away.glob("compacted/w/*.parquet"))) == 3
    monkeypatch.setattr(compaction, "FANOUT", 2)
    compaction.compact(Ledger(root), grace_s=0)
    archive(Ledger(root), older_than_days=1, to=str(away), delete=False)
    compacted = [part for part in layout.parts(root, "w") if part.state == "compacted"]
    assert {path.stem for path in away.glob("compacted/w/*")} == {Path(part.stem).name for part in compacted}
    assert len(compacted) < 3
    assert count_by_engines(str(away), {}) == {layout.read_manifest(root, compacted[-1])[0]["last_seq"] + 1}


def test_compaction_never_merges_across_what_was_archived(root, monkeypatch):
    monkeypatch.setattr(compaction, "FANOUT", 2)
    parts = layout.parts(root, "w")
    with LedgerWriter.open(root, "archive", "ledger") as log:
        run = archiving._Archiving(Ledger(root), Store(f"{root}-away"), True, log)
        run.archive(parts[1], archiving.Archived(url="away", deleted=True))
    assert states(root)[:3] == ["compacted", "archived", "compacted"]
    compaction.compact(Ledger(root), grace_s=0)
    assert states(root)[:3] == ["compacted", "archived", "compacted"]
    assert Ledger(root).verify().problems == []
