"""What upkeep leaves out of its work so far: events of epochs that are still written, or that nobody merged yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rose.ledger import layout, segments
from rose.ledger.approvals.values import CONTROLS_WRITER
from rose.ledger.layout import Part
from rose.ledger.verify import ARCHIVE_WRITER, CLOSING_WRITER, COMPACTION_WRITER, ROLL_UP_WRITER

#: Their events prove the manifests of all writers, roll-ups, closes and approvals, so they never leave the ledger.
KEPT_WRITERS = (ARCHIVE_WRITER, CLOSING_WRITER, COMPACTION_WRITER, ROLL_UP_WRITER, CONTROLS_WRITER)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Live epochs that have events. The newest of each writer is open, whether a writer is at work on it or not."""

    open_epochs: int = 0
    open_events: int = 0
    #: Closed, and not merged by a compaction.
    unmerged_epochs: int = 0
    unmerged_events: int = 0


def left_out(root: Path) -> LeftOut:
    """Of all writers whose events may leave one day. Raises LedgerError for a damaged segment."""
    counts = [0, 0, 0, 0]
    for writer in layout.writers(root):
        if writer in KEPT_WRITERS:
            continue
        newest = max(layout.epochs(root, writer), default=-1)
        for part in layout.parts(root, writer):
            if part.state == "live" and (events := _events(root, part)):
                place = 0 if part.last == newest else 2
                counts[place] += 1
                counts[place + 1] += events
    return LeftOut(*counts)


def _events(root: Path, part: Part) -> int:
    folder = root / part.folder
    try:
        names = segments.segment_names(folder)
        first = segments.read_header((folder / names[0]).read_bytes()).first_seq if names else 0
        return segments.end_seq(root, part) - first if names else 0
    except FileNotFoundError:
        # It was merged at this moment.
        return 0
