"""Verification: every byte, every link of the chain and every seq of a ledger, while its writers write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rose.ledger import examine, layout, segments
from rose.ledger.examine import Seen
from rose.ledger.growth import rolled
from rose.ledger.layout import LedgerError, Part

#: The writers through which upkeep records what it did, and the words for it.
COMPACTION_WRITER, COMPACTED_ACTION = "compaction", "compacted"
ARCHIVE_WRITER, ARCHIVED_ACTION = "archive", "archived"
ROLL_UP_WRITER, ROLLED_UP_ACTION = "rollup", "rolled_up"
#: Its events prove what was frozen of closed periods.
CLOSING_WRITER = "closing"

_T = TypeVar("_T")


@dataclass(slots=True)
class WriterReport:
    """What stands of one writer. `problems` name the file and what is wrong with it."""

    writer: str
    #: Segments as they were written, whether still live, or merged or archived since.
    segments: int = 0
    events: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    #: Those of `events` whose rows were archived: their chain is proved, the rows are elsewhere or gone on purpose.
    archived_events: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The outcome of `verify`."""

    root: Path
    writers: list[WriterReport]
    #: Problems of the roll-ups.
    roll_ups: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """All problems of all writers and of the roll-ups; empty for a sound ledger."""
        return [*(problem for writer in self.writers for problem in writer.problems), *self.roll_ups]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(root: Path | str, *, seen: Seen | None = None) -> Report:
    """Check the ledger at `root`: finds a changed byte, a missing, reordered or foreign file, a gap or repeat in seq.

    Writers, compaction and the archive may go on meanwhile; what is written later is not looked at. Reads every
    byte, or with `seen` every file that is new or changed since. Raises LedgerError if `root` is no ledger.
    """
    root = layout.check(root)
    seen = seen or Seen()
    with seen.lock:
        records = _Records(root, seen)
        writers = [_verify_writer(root, writer, records, seen) for writer in _all_writers(root)]
        report = Report(root, writers, _verify_roll_ups(root, seen))
        seen.forget_unvisited()
    return report


def _all_writers(root: Path) -> list[str]:
    """Also those of which nothing but the head is left."""
    heads = {path.stem for path in (root / "heads").glob("*.json") if not path.name.startswith(".")}
    return sorted({*layout.writers(root), *heads})


def _verify_roll_ups(root: Path, seen: Seen) -> list[str]:
    """What is wrong with the newest generation: files that are not the ones it names, or that no event speaks of."""
    while True:
        try:
            coverage = rolled.newest(root)
        except LedgerError as error:
            return [str(error)]
        if coverage is None:
            return []
        problems = rolled.faults(root, coverage)
        said = examine.recorded(root, ROLL_UP_WRITER, ROLLED_UP_ACTION, seen)
        if coverage.sha256 not in {detail["coverage_sha256"] for detail in said}:
            problems.append(f"{coverage.folder}/coverage.json: no event of a roll-up says so; it was changed")
        if not problems or rolled.newest(root) == coverage:
            return problems


def _verify_writer(root: Path, writer: str, records: _Records, seen: Seen) -> WriterReport:
    """What looks missing because a part was merged or moved meanwhile is read where it went."""
    while True:
        before = layout.chain(root, writer)
        report = _Chain(root, writer, records, seen).walk(before)
        if not report.problems or set(before) <= set(layout.chain(root, writer)):
            return report


class _Records:
    """SHA-256 of the manifests that compaction and the archive recorded as events."""

    def __init__(self, root: Path, seen: Seen) -> None:
        self._root, self._seen = root, seen
        self._read()

    def _read(self) -> None:
        said = examine.recorded(self._root, COMPACTION_WRITER, COMPACTED_ACTION, self._seen)
        self._compacted = {detail["manifest_sha256"] for detail in said}
        said = examine.recorded(self._root, ARCHIVE_WRITER, ARCHIVED_ACTION, self._seen)
        self._archived = {detail["manifest_sha256"] for detail in said if detail["deleted"]}

    def lack(self, part: Part, manifest_sha256: str) -> str | None:
        """Which event is missing for `part` to stand where it does. Events are on disk before what they allow."""
        if (fault := self._lack(part, manifest_sha256)) is not None:
            self._read()
            fault = self._lack(part, manifest_sha256)
        return fault

    def _lack(self, part: Part, manifest_sha256: str) -> str | None:
        if manifest_sha256 not in self._compacted:
            return "no event of the compaction says so; it was changed, or written by another"
        if part.state == "archived" and manifest_sha256 not in self._archived:
            return "no event of the archive says that its file was to leave the ledger"
        return None


class _Chain:
    """The walk along one writer's segments, from its first to its newest."""

    def __init__(self, root: Path, writer: str, records: _Records, seen: Seen) -> None:
        self.root = root
        self.records = records
        self.seen = seen
        self.report = WriterReport(writer)
        self.next_epoch = 0
        #: What the next segment must say; None where damage makes it unknowable.
        self.next_seq: int | None = 0
        self.sha256: str | None = ""
        self.newest = ""

    def walk(self, parts: list[Part]) -> WriterReport:
        # Read first: a head never runs ahead of its segment, so what it names must be found.
        head = self._head()
        for part in parts:
            if part.first != self.next_epoch:
                missing = f"epochs {self.next_epoch} to {part.first - 1}"
                self._problem(f"live/{self.report.writer}", f"{missing} are missing")
                self.next_seq = None
            self.next_epoch = part.last + 1
            if part.state == "live":
                self._live(part)
            else:
                self._merged(part)
        if head is not None and segments.place(head) > segments.place(self.newest):
            self._problem(head, "the newest segment is missing")
        return self.report

    def _head(self) -> str | None:
        try:
            return segments.read_head(self.root, self.report.writer)
        except LedgerError as error:
            self._problem(f"heads/{self.report.writer}.json", str(error))
            return None

    def _live(self, part: Part) -> None:
        relative = part.folder
        try:
            listed = [path.name for path in (self.root / relative).iterdir()]
        except OSError as error:
            self._problem(relative, f"it cannot be listed ({error.strerror})")
            return
        for name in sorted(listed):
            if not name.startswith(".") and not layout.SEGMENT_NAME.fullmatch(name):
                self._problem(f"{relative}/{name}", "a foreign file; segments are named by index and SHA-256")
        names = sorted(name for name in listed if layout.SEGMENT_NAME.fullmatch(name))
        if not names:
            self._problem(relative, "the epoch has no segment")
        for index, name in enumerate(names):
            self._segment(f"{relative}/{name}", part.first, index)

    def _segment(self, path: str, epoch: int, index: int) -> None:
        sha256 = segments.sha256_in(path)
        self.report.segments += 1
        self.newest = path
        found = self._facts(path, "segment", lambda content: examine.segment(content, sha256))
        if found is not None and found.fault is not None:
            self._problem(path, found.fault)
        if found is None or found.changed:
            # Its own words cannot be trusted, but its successor still names the SHA-256 it had.
            self.sha256, self.next_seq = sha256, None
        if found is None or (header := found.header) is None:
            return
        if (header.writer, header.epoch) != (self.report.writer, epoch):
            self._problem(path, f"a foreign segment, of writer {header.writer!r} and epoch {header.epoch}")
        if header.index != index:
            self._problem(path, f"its index is {header.index} and its place {index}: a segment is missing or repeated")
        self._link(path, header.first_seq, header.last_seq, header.previous_sha256, sha256)

    def _merged(self, part: Part) -> None:
        manifest = self._facts(part.manifest, "manifest", examine.manifest)
        fault = None if manifest is None else self.records.lack(part, manifest.sha256)
        if manifest is None or fault is not None:
            if fault is not None:
                self._problem(part.manifest, fault)
            # Nothing it says can be trusted, so there is nothing to hold the next segment against.
            self.sha256, self.next_seq = None, None
            return
        said = manifest.said
        first_seq, last_seq = said["first_seq"], said["last_seq"]
        self.report.segments += manifest.segments
        where = f"{part.manifest}: {manifest.first_file}"
        self._link(where, first_seq, last_seq, manifest.previous_sha256, manifest.last_sha256)
        for fault in manifest.faults:
            self._problem(part.manifest, fault)
        if part.state == "archived":
            self.report.archived_events += last_seq - first_seq + 1
            return
        # What is right depends on the manifest, so a new one means a new look.
        kind = f"rows {manifest.sha256}"
        fault = self._facts(part.pattern, kind, lambda content: examine.rows_fault(content, said))
        if fault:
            self._problem(part.pattern, fault)

    def _facts(self, path: str, kind: str, look: Callable[[bytes], _T]) -> _T | None:
        """What `look` says of the file; None, and a problem, if it cannot be read."""
        try:
            return self.seen.facts(self.root / path, kind, look)
        except FileNotFoundError:
            self._problem(path, "it is missing")
        except OSError as error:
            self._problem(path, f"it cannot be read ({error.strerror})")
        return None

    def _link(self, path: str, first_seq: int, last_seq: int, previous_sha256: str, sha256: str) -> None:
        """Check one or more segments against the one before them, and make the last the one before the next."""
        for fault in examine.link_faults(self.sha256, self.next_seq, previous_sha256, first_seq):
            self._problem(path, fault)
        if last_seq >= first_seq:
            self.report.events += last_seq - first_seq + 1
            self.report.first_seq = first_seq if self.report.first_seq is None else self.report.first_seq
            self.report.last_seq = last_seq
        self.sha256, self.next_seq = sha256, last_seq + 1

    def _problem(self, path: str, what: str) -> None:
        self.report.problems.append(f"{path}: {what}")
