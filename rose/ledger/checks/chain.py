"""Walks along the segments of one writer, from the first to the newest. They may be live, merged or archived."""

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rose.ledger.checks.expected import Expected, Records
from rose.ledger.files import examine, layout, registry, segments
from rose.ledger.files.examine import Seen
from rose.ledger.files.layout import LedgerError, Part
from rose.ledger.files.segments import Head, Link

#: How often, and how many seconds apart, to look again at a state that a working writer is about to correct.
_LOOKS, _LOOK_S = 3, 0.05

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Signer:
    key: str
    segment: str
    first_seq: int


@dataclass(slots=True)
class WriterReport:
    """The findings about one writer. Each text in `problems` begins with the name of a file."""

    writer: str
    segments: int = 0  # Segments as written: live, merged or archived since.
    events: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    #: Events in archived parts. Their chain is proved, and the rows are elsewhere or removed on purpose.
    archived_events: int = 0
    signed_events: int = 0
    signers: list[Signer] = field(default_factory=list)
    #: The seq of the next event, and the newest link, which it continues.
    next_seq: int = 0
    chain_sha256: str = ""
    #: By marked seq: links of the segments that end just before it; several, if some segments have no rows.
    links: dict[int, tuple[str, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


class Chain:
    def __init__(
        self, root: Path, writer: str, records: Records, seen: Seen, expected: Expected, marks: Sequence[int]
    ) -> None:
        self.root, self.records, self.seen, self.expected = root, records, seen, expected
        self.marks = set(marks)
        self.keys = registry.keys_of(expected.lines, writer)
        self.report = WriterReport(writer)
        self.next_epoch = 0
        #: The next segment must match these; None where damage hides the value.
        self.next_seq: int | None = 0
        self.sha256: str | None = ""
        self.link: str | None = ""
        self.newest = ""
        self.head_names_one = False

    def walk(self, parts: list[Part]) -> WriterReport:
        # First, since a head never runs ahead of its segment: the named segment must exist.
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
        self.report.chain_sha256 = self.link or ""
        if head is not None:
            self._check_head(head)
        return self.report

    def check_expected(self) -> None:
        writer, report, expected = self.report.writer, self.report, self.expected
        if writer not in layout.writers(self.root) and (self.head_names_one or writer in (expected.registered or ())):
            self._problem(f"live/{writer}", "every segment of the writer is missing")
        last_seq = -1 if report.last_seq is None else report.last_seq
        if last_seq < (end := expected.ends.get(writer, -1)):
            self._problem(f"live/{writer}", f"it ends at seq {last_seq}, but seq {end} was merged or summed up")
        known = expected.verified.get(writer)
        if known is not None and not self._stands(known):
            self._problem(known, "missing since the last verification")
        foreign = expected.registered is not None and writer not in expected.registered
        now = {line.writer for line in registry.sound_lines(self.root)} if foreign else set()
        if foreign and report.events and writer not in now:
            self._problem(f"live/{writer}", f"a foreign writer: {registry.FILE} does not name it")

    def _head(self) -> Head | None:
        try:
            return segments.read_head(self.root, self.report.writer)
        except LedgerError as error:
            self._problem(f"heads/{self.report.writer}.json", str(error))
            return None

    def _check_head(self, head: Head) -> None:
        path = f"heads/{self.report.writer}.json"
        self.head_names_one = head.segment is not None
        if head.segment is not None and not self._stands(head.segment):
            self._problem(head.segment, "the newest segment is missing")
            return
        for look in range(_LOOKS):
            if not self.newest or self.newest in (head.segment, head.announced):
                return
            later = head.segment is not None and segments.place(head.segment) > segments.place(self.newest)
            if head.segment is not None and later and self._stands(head.segment):
                return
            time.sleep(_LOOK_S if look else 0)
            if (again := self._head()) is None:
                return
            head = again
        self._problem(
            self.newest,
            f"{path} does not name it as the newest segment: another program added it, or the head was changed. If "
            "the machine lost its power, opening the writer again puts this right",
        )

    def _stands(self, segment: str) -> bool:
        return examine.holds(self.root, self.report.writer, segment, self.seen)

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
        segment = self._examine(path, "segment", functools.partial(examine.segment, sha256=sha256))
        if segment is None or segment.fault == examine.CHANGED:
            # Its header cannot be trusted, but its successor names its SHA-256.
            self.sha256, self.next_seq, self.link = sha256, None, None
        if segment is None or (header := segment.header) is None:
            return
        if (header.writer, header.epoch) != (self.report.writer, epoch):
            self._problem(path, f"a foreign segment, of writer {header.writer!r} and epoch {header.epoch}")
        if header.index != index:
            self._problem(path, f"its index is {header.index}, but its place {index}: a segment is missing or repeated")
        self._link(path, header.first_seq, header.last_seq, header.previous_sha256, sha256)
        link = segments.link(header, sha256)
        self._problem(path, link.fault(self.link))
        self._signed(Signer(link.key, path, link.first_seq), link.events)
        self._mark(link)
        self.link = link.chain_sha256

    def _merged(self, part: Part) -> None:
        if (manifest := self._manifest(part)) is None:
            self.sha256, self.next_seq, self.link = None, None, None
            return
        first_seq, last_seq = manifest.said["first_seq"], manifest.said["last_seq"]
        self.report.segments += manifest.segments
        where = f"{part.manifest}: {manifest.first.file}"
        self._link(where, first_seq, last_seq, manifest.first.previous_sha256, manifest.last.sha256)
        for fault in manifest.faults:
            self._problem(part.manifest, fault)
        self._problem(where, manifest.first.fault(self.link))
        for key, segment, seq, events in manifest.signers:
            self._signed(Signer(key, segment, seq), events)
        if any(first_seq <= mark <= last_seq + 1 for mark in self.marks):
            with suppress(OSError):
                listed = (self.root / part.manifest).read_bytes()
                for link in examine.links(listed) if examine.sha256_of(listed) == manifest.sha256 else ():
                    self._mark(link)
        self.link = manifest.last.chain_sha256
        if part.state == "archived":
            self.report.archived_events += last_seq - first_seq + 1
        else:
            self._rows(part, manifest)

    def _manifest(self, part: Part) -> examine.Manifest | None:
        if (manifest := self._facts(part.manifest, "manifest", examine.manifest)) is None:
            return None
        fault = self.records.lack(part, manifest.sha256)
        if fault is None and not manifest.said:
            fault = "a compaction event names it, but it is not a manifest: it was forged"
        self._problem(part.manifest, fault)
        return manifest if fault is None else None

    def _rows(self, part: Part, manifest: examine.Manifest) -> None:
        kind = f"rows {manifest.sha256}"

        def look(content: bytes) -> examine.Segment:
            listed = (self.root / part.manifest).read_bytes()
            if examine.sha256_of(listed) != manifest.sha256:
                return examine.Segment(None, "its manifest was changed meanwhile")
            return examine.rows(content, listed)

        self._examine(part.pattern, kind, look)

    def _examine(self, path: str, kind: str, look: Callable[[bytes], examine.Segment]) -> examine.Segment | None:
        examined = self._facts(path, kind, look)
        if examined is not None:
            self._problem(path, examined.fault)
            self.report.unchecked += (f"{path}: {structure}" for structure in examined.unchecked)
        return examined

    def _facts(self, path: str, kind: str, look: Callable[[bytes], _T]) -> _T | None:
        try:
            return self.seen.facts(self.root / path, kind, look)
        except FileNotFoundError:
            self._problem(path, "it is missing")
        except OSError as error:
            self._problem(path, f"it cannot be read ({error.strerror})")
        return None

    def _link(self, path: str, first_seq: int, last_seq: int, previous_sha256: str, sha256: str) -> None:
        for fault in examine.link_faults(self.sha256, self.next_seq, previous_sha256, first_seq):
            self._problem(path, fault)
        self.report.next_seq = last_seq + 1
        if last_seq >= first_seq:
            self.report.events += last_seq - first_seq + 1
            self.report.first_seq = first_seq if self.report.first_seq is None else self.report.first_seq
            self.report.last_seq = last_seq
        self.sha256, self.next_seq = sha256, last_seq + 1

    def _mark(self, link: Link) -> None:
        if (next_seq := link.last_seq + 1) in self.marks:
            self.report.links[next_seq] = (*self.report.links.get(next_seq, ()), link.chain_sha256)

    def _signed(self, signer: Signer, events: int) -> None:
        last = self.report.signers[-1] if self.report.signers else None
        if last is None or last.key != signer.key:
            self.report.signers.append(signer)
            if last is None and not signer.key and registry.begins_signed(self.expected.lines, self.report.writer):
                what = f"unsigned, and {registry.FILE} says that its writer signed from the start"
                self._problem(signer.segment, f"{what}: it was forged")
            if last is not None and not signer.key:
                what = "unsigned segment after a signed one: it was forged, or written while the"
                self._problem(signer.segment, f"{what} writer's key was missing")
        if signer.key:
            self.report.signed_events += events
            # The first segment has no events, and appears just before the registry names its key.
            if events:
                self._check_key(signer)

    def _check_key(self, signer: Signer) -> None:
        if signer.key not in self.keys:
            self.keys |= registry.keys_of(registry.sound_lines(self.root), self.report.writer)
        if signer.key not in self.keys:
            self.keys.add(signer.key)
            self._problem(
                signer.segment,
                f"it is signed by the key {signer.key}, which {registry.FILE} does not name for this writer: it was "
                "forged, or the registry was changed",
            )

    def _problem(self, path: str, what: str | None) -> None:
        if what is not None:
            self.report.problems.append(f"{path}: {what}")
