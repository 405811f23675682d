"""What a fleet does to its ledger by itself, as its file says."""

from __future__ import annotations

from pathlib import Path

from rose.clock import utc_us
from rose.events import Run
from rose.ledger import layout, segments
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from rose.runtime.service import upkeep
from tests.runtime.service.fleet_here import fleet, started, stopped, until

DAY_US = 86_400_000_000


def merged(root: Path, writer: str, age_days: float) -> str:
    """The path of a merged and summed up file of a writer, whose events are so old."""
    with LedgerWriter.open(root, writer, "r") as log:
        log.record(Run(action="started", name="earlier", at_us=utc_us() - int(age_days * DAY_US)))
    tail = segments.recover(root, writer)
    assert tail is not None
    segments.begin_epoch(root, tail)
    compaction.compact(root)
    rollup.roll_up(root)
    (part,) = (part for part in layout.parts(root, writer) if part.state == "compacted")
    return part.pattern


def test_a_fleet_archives_nothing_unless_its_file_says_where(tmp_path):
    assert [job.name for job in upkeep.ledger_jobs(fleet(tmp_path))] == ["compact", "roll-up", "audit"]


def test_a_fleet_archives_what_is_older_than_its_file_says(tmp_path, monkeypatch):
    root, cold = tmp_path / "ledger", tmp_path / "cold"
    old, young = merged(root, "old", 40), merged(root, "young", 20)
    table = f'[archive]\nto = "{cold}"\nafter_days = 30\ndelete = true\n'
    keeper = started(fleet(tmp_path, table), monkeypatch)
    until(lambda: (cold / old).exists() and [part.state for part in layout.chain(root, "old")] == ["archived", "live"])
    stopped(keeper)
    assert not (cold / young).exists()
    assert verify(root).problems == []
    assert archive.restore(root, str(cold)).events == 1
