"""Verification: every byte, every link of the chain and every seq of a ledger, while its writers write.

And that readers read nothing else: the names of the files, the views over them, and what events of one writer say of
the files of another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rose.clock import utc_us
from rose.ledger import examine, layout, segments, verified
from rose.ledger.checks import names, registry, roll_ups, schema_file, views
from rose.ledger.checks.records import (
    ARCHIVE_WRITER,
    ARCHIVED_ACTION,
    COMPACTED_ACTION,
    COMPACTION_WRITER,
    RESTORED_ACTION,
    Records,
)
from rose.ledger.checks.roll_ups import ROLL_UP_WRITER, ROLLED_UP_ACTION
from rose.ledger.examine import Seen
from rose.ledger.layout import LedgerError, Part
from rose.ledger.segments import Head

__all__ = [
    "ARCHIVED_ACTION",
    "ARCHIVE_WRITER",
    "CLOSING_WRITER",
    "COMPACTED_ACTION",
    "COMPACTION_WRITER",
    "RESTORED_ACTION",
    "ROLLED_UP_ACTION",
    "ROLL_UP_WRITER",
    "Report",
    "WriterReport",
    "verify",
]

#: Its events prove what was frozen of closed periods.
CLOSING_WRITER = "closing"
#: How often, and how long apart, something is looked at that a writer at work is about to put right.
_HEAD_LOOKS, _LOOK_S = 3, 0.05

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
    #: Problems of what is no writer's: names, the registry, the schema file, the views.
    folder: list[str] = field(default_factory=list)
    #: What is no problem, and worth knowing.
    notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """All problems; empty for a sound ledger."""
        return [*(problem for writer in self.writers for problem in writer.problems), *self.roll_ups, *self.folder]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(root: Path | str, *, seen: Seen | None = None) -> Report:
    """Check the ledger at `root`, and leave a record of it (see `rose.ledger.verified`).

    Finds a changed byte; a missing, reordered or foreign file, writer or roll-up; a gap or repeat in seq; views that
    are not this version's. Writers, compaction and the archive may go on meanwhile; what is written later is not
    looked at. Reads every byte, or with `seen` every file that is new or changed since by its size and times. Raises
    LedgerError if `root` is no ledger.
    """
    root = layout.check(root)
    began_us = utc_us()
    seen = seen or Seen()
    with seen.lock:
        before = verified.state(root)
        full = not seen.known
        records = Records(root, seen)
        said = _Said(root, records, before)
        writers = [_verify_writer(root, writer, said, records, seen) for writer in said.writers]
        edited, notes = views.faults(root, seen)
        folder = [*_folder(root, said, seen), *edited]
        report = Report(root, [found for found, _ in writers], roll_ups.faults(root, seen), folder, notes)
        heads = {found.writer: newest for found, newest in writers if newest and not found.problems}
        seen.forget_unvisited()
        verified.leave(
            root,
            until_us=began_us,
            full=full,
            problems=len(report.problems),
            events=sum(found.events for found in report.writers),
            # What was there once is asked for again, until it is back.
            heads={**({} if before is None else before.heads), **heads},
        )
    return report


class _Said:
    """What the files say of which writers there are, and of how far each must go at least."""

    def __init__(self, root: Path, records: Records, before: verified.State | None) -> None:
        self.problem: str | None = None
        try:
            self.registered = registry.known(root)
        except LedgerError as error:
            self.registered, self.problem = None, str(error)
        self.ends = roll_ups.ends(root)
        for writer, last_seq in records.last_seqs.items():
            self.ends[writer] = max(last_seq, self.ends.get(writer, -1))
        self.verified = {} if before is None else before.heads
        heads = {path.stem for path in (root / "heads").glob("*.json") if layout.WRITER_NAME.fullmatch(path.stem)}
        named = {*heads, *(self.registered or ()), *self.ends, *self.verified}
        self.writers = sorted({*layout.writers(root), *named})


def _folder(root: Path, said: _Said, seen: Seen) -> list[str]:
    """What is wrong with everything that is no writer's, no roll-up and no view."""
    found = names.faults(root)
    if said.problem is not None:
        found.append(said.problem)
    # One that is missing is made again by the next writer.
    schema = root / layout.SCHEMA_FILE
    if schema.exists() and (fault := seen.facts(schema, "schema", lambda _: schema_file.fault(schema))):
        found.append(f"{layout.SCHEMA_FILE}: {fault}")
    return found


def _verify_writer(root: Path, writer: str, said: _Said, records: Records, seen: Seen) -> tuple[WriterReport, str]:
    """The report, and the path of the newest segment. What was merged or moved meanwhile is read where it went."""
    while True:
        before = layout.chain(root, writer)
        chain = _Chain(root, writer, records, seen)
        report = chain.walk(before)
        chain.check_said(said)
        if not report.problems or set(before) <= set(layout.chain(root, writer)):
            return report, chain.newest


class _Chain:
    """The walk along one writer's segments, from its first to its newest."""

    def __init__(self, root: Path, writer: str, records: Records, seen: Seen) -> None:
        self.root = root
        self.records = records
        self.seen = seen
        self.report = WriterReport(writer)
        self.next_epoch = 0
        #: What the next segment must say; None where damage makes it unknowable.
        self.next_seq: int | None = 0
        self.sha256: str | None = ""
        self.newest = ""
        self.parts: list[Part] = []
        self.head_names_one = False

    def walk(self, parts: list[Part]) -> WriterReport:
        # Read first: a head never runs ahead of its segment, so what it names must be found.
        head = self._head()
        self.parts = parts
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
        self._superseded()
        if head is not None:
            self._check_head(head)
        return self.report

    def check_said(self, said: _Said) -> None:
        """Hold what was found of the writer against what others say of it."""
        writer, report = self.report.writer, self.report
        if writer not in layout.writers(self.root) and (self.head_names_one or writer in (said.registered or ())):
            self._problem(f"live/{writer}", "every segment of the writer is missing")
        last_seq = -1 if report.last_seq is None else report.last_seq
        if last_seq < (end := said.ends.get(writer, -1)):
            self._problem(f"live/{writer}", f"it ends at seq {last_seq}, and seq {end} was merged or summed up")
        known = said.verified.get(writer)
        if known is not None and not self._stands(known):
            self._problem(known, "it is missing, and was there when the ledger was verified last")
        foreign = said.registered is not None and writer not in said.registered
        if foreign and report.events and writer not in (registry.known_or_none(self.root) or ()):
            self._problem(f"live/{writer}", f"a foreign writer: {registry.FILE} does not name it")

    def _head(self) -> Head | None:
        try:
            return segments.read_head(self.root, self.report.writer)
        except LedgerError as error:
            self._problem(f"heads/{self.report.writer}.json", str(error))
            return None

    def _check_head(self, head: Head) -> None:
        """The head names a segment that stands and is the newest; or one was announced, and that is."""
        path = f"heads/{self.report.writer}.json"
        self.head_names_one = head.segment is not None
        if head.segment is not None and not self._stands(head.segment):
            self._problem(head.segment, "the newest segment is missing")
            return
        for look in range(_HEAD_LOOKS):
            if not self.newest or self.newest in (head.segment, head.announced):
                return
            # Written on meanwhile.
            later = head.segment is not None and segments.place(head.segment) > segments.place(self.newest)
            if head.segment is not None and later and self._stands(head.segment):
                return
            time.sleep(_LOOK_S if look else 0)
            again = self._head()
            if again is None:
                return
            head = again
        self._problem(
            self.newest,
            f"{path} does not name it as the newest segment: it was added by another, or the head was changed. If "
            "the machine lost its power, opening the writer again puts this right",
        )

    def _stands(self, segment: str) -> bool:
        """Whether a segment is where it was written, or among those that a manifest says were merged."""
        try:
            epoch, _ = segments.place(segment)
        except ValueError:
            return False
        for part in layout.chain(self.root, self.report.writer):
            if not part.first <= epoch <= part.last:
                continue
            if part.state == "live":
                return (self.root / segment).exists()
            try:
                return segment in self.seen.facts(self.root / part.manifest, "files", examine.merged_files)
            except OSError:
                return False
        return False

    def _superseded(self) -> None:
        """What was merged and awaits its removal is read like the rest: a query that began before still reads it."""
        chain = self.parts
        for part, superseded in layout.all_parts(self.root, self.report.writer):
            if not superseded:
                continue
            wider = next((one for one in chain if one.first <= part.first and part.last <= one.last), None)
            problems = len(self.report.problems)
            if part.state == "live":
                self._merged_epoch(part, wider)
            else:
                self._merged_part(part)
            if (part, True) not in layout.all_parts(self.root, self.report.writer):
                # Removed at this moment.
                del self.report.problems[problems:]

    def _merged_epoch(self, part: Part, wider: Part | None) -> None:
        merged = None if wider is None else self._facts(wider.manifest, "files", examine.merged_files)
        for name in sorted(layout.names(self.root / part.folder)):
            path = f"{part.folder}/{name}"
            if layout.LEFTOVER_NAME.fullmatch(name):
                continue
            if merged is not None and path not in merged:
                self._problem(path, "a foreign file: it is not among those that were merged")
                continue
            sha256 = segments.sha256_in(name)
            looked = self._facts(path, "segment", lambda content, sha256=sha256: examine.segment(content, sha256))  # type: ignore[misc]
            if looked is not None and looked.fault is not None:
                self._problem(path, looked.fault)

    def _merged_part(self, part: Part) -> None:
        manifest = self._facts(part.manifest, "manifest", examine.manifest)
        if manifest is None:
            return
        if (fault := self.records.lack(part, manifest.sha256)) is not None:
            self._problem(part.manifest, fault)
        elif part.state == "compacted":
            self._rows(part, manifest)

    def _live(self, part: Part) -> None:
        relative = part.folder
        try:
            listed = [path.name for path in (self.root / relative).iterdir()]
        except OSError as error:
            self._problem(relative, f"it cannot be listed ({error.strerror})")
            return
        for name in sorted(listed):
            if not layout.LEFTOVER_NAME.fullmatch(name) and not layout.SEGMENT_NAME.fullmatch(name):
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
        self._rows(part, manifest)

    def _rows(self, part: Part, manifest: examine.Manifest) -> None:
        # What is right depends on the manifest, so a new one means a new look.
        kind = f"rows {manifest.sha256}"
        fault = self._facts(part.pattern, kind, lambda content: examine.rows_fault(content, manifest.said))
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
