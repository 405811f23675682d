"""Events added to a ledger since a mark, which lies between two segments of a writer, also if they were merged."""

from collections.abc import Mapping
from dataclasses import dataclass

from rose.ledger.files import catalog, layout, rolled, segments, sources
from rose.ledger.files.layout import Part
from rose.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a writer was read: up to segment `index` of `epoch`, and before `next_seq`."""

    epoch: int
    index: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class Increment:
    select: str
    files: int
    marks: Mapping[str, Mark]
    events: int
    writer_order: str
    id_files: Mapping[str, str]  # By path relative to the ledger: SHA-256 of the files with the roll-ups' ids.


def since(ledger: Ledger, marks: Mapping[str, Mark]) -> Increment:
    """Return what each writer added since its mark, if any. Raises LedgerError if a segment is damaged."""
    files: list[str] = []
    apart: list[str] = []
    ends, events = {}, 0
    for writer in layout.writers(ledger.folder):
        begin = end = marks.get(writer, Mark(-1, -1, 0))
        for part in layout.parts(ledger.folder, writer):
            if part.last < begin.epoch:
                continue
            if part.state == "live":
                listed, end = _segments(ledger, part, begin, end)
                files += listed
                continue
            next_seq = segments.end_seq(ledger.folder, part)
            if next_seq > begin.next_seq:
                files.append(part.pattern)
                # An epoch that was open at the mark was merged since.
                if part.first <= begin.epoch:
                    apart.append(f"writer = {catalog.quoted(writer)} AND seq < {begin.next_seq}")
            end = Mark(part.last, 2**31, max(next_seq, begin.next_seq))
        ends[writer] = end
        events += end.next_seq - begin.next_seq
    order = sources.writer_order(ledger.folder, list(ends))
    coverage = rolled.newest(ledger.folder)
    id_files = coverage.ids if coverage is not None and coverage.complete else {}
    return Increment(sources.events(ledger.folder, files, apart=apart), len(files), ends, events, order, id_files)


def _segments(ledger: Ledger, part: Part, begin: Mark, end: Mark) -> tuple[list[str], Mark]:
    names = segments.segment_names(ledger.folder / part.folder)
    new = [name for name in names if part.first > begin.epoch or int(name.partition("-")[0]) > begin.index]
    if not new:
        return [], end
    header = segments.read_header((ledger.folder / part.folder / new[-1]).read_bytes())
    return [f"{part.folder}/{name}" for name in new], Mark(part.first, header.index, header.last_seq + 1)
