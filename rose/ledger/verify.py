"""Verification: every byte, every link of the chain and every seq of a ledger, while its writers write."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rose.ledger import layout, segments
from rose.ledger.layout import LedgerError, Part

#: The writer through which compaction records what it merged.
COMPACTION_WRITER = "compaction"
COMPACTED_ACTION = "compacted"


@dataclass(slots=True)
class WriterReport:
    """What stands of one writer. `problems` name the file and what is wrong with it."""

    writer: str
    #: Segments as they were written, whether still live or merged since.
    segments: int = 0
    events: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The outcome of `verify`."""

    root: Path
    writers: list[WriterReport]

    @property
    def problems(self) -> list[str]:
        """All problems of all writers; empty for a sound ledger."""
        return [problem for writer in self.writers for problem in writer.problems]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(root: Path | str) -> Report:
    """Check the ledger at `root`: finds a changed byte, a missing, reordered or foreign file, a gap or repeat in seq.

    Writers and compaction may go on meanwhile; what is written later is not looked at. Raises LedgerError if `root`
    is no ledger.
    """
    root = layout.check(root)
    manifests = _recorded_manifests(root)
    return Report(root, [_verify_writer(root, writer, manifests) for writer in _all_writers(root)])


def _all_writers(root: Path) -> list[str]:
    """Also those of which nothing but the head is left."""
    heads = {path.stem for path in (root / "heads").glob("*.json") if not path.name.startswith(".")}
    return sorted({*layout.writers(root), *heads})


def _verify_writer(root: Path, writer: str, manifests: set[str]) -> WriterReport:
    """A compaction may remove an epoch while it is read; what it left in its place is then read instead."""
    while True:
        before = layout.parts(root, writer)
        try:
            return _Chain(root, writer, manifests).walk(before)
        except FileNotFoundError:
            if layout.parts(root, writer) == before:
                raise


class _Chain:
    """The walk along one writer's segments, from its first to its newest."""

    def __init__(self, root: Path, writer: str, manifests: set[str]) -> None:
        self.root = root
        self.manifests = manifests
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
            if part.compacted:
                self._compacted(part)
            else:
                self._live(part)
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
        listed = [path.name for path in (self.root / relative).iterdir()]
        for name in sorted(listed):
            if not name.startswith(".") and not layout.SEGMENT_NAME.fullmatch(name):
                self._problem(f"{relative}/{name}", "a foreign file; segments are named by index and SHA-256")
        names = sorted(name for name in listed if layout.SEGMENT_NAME.fullmatch(name))
        if not names:
            self._problem(relative, "the epoch has no segment")
        for index, name in enumerate(names):
            self._segment(f"{relative}/{name}", part.first, index)

    def _segment(self, path: str, epoch: int, index: int) -> None:
        content = (self.root / path).read_bytes()
        sha256 = segments.sha256_in(path)
        self.report.segments += 1
        self.newest = path
        if hashlib.sha256(content).hexdigest() != sha256:
            self._problem(path, "its bytes were changed after it was written")
            # Its own words cannot be trusted, but its successor still names the SHA-256 it had.
            self.sha256, self.next_seq = sha256, None
            return
        try:
            header = segments.read_header(content)
        except LedgerError as error:
            self._problem(path, f"a foreign file: {error}")
            return
        seqs = segments.read_rows(content, ["seq"])["seq"].to_pylist()
        if (header.writer, header.epoch) != (self.report.writer, epoch):
            self._problem(path, f"a foreign segment, of writer {header.writer!r} and epoch {header.epoch}")
        if header.index != index:
            self._problem(path, f"its index is {header.index} and its place {index}: a segment is missing or repeated")
        if seqs != list(range(header.first_seq, header.last_seq + 1)):
            self._problem(path, f"its rows are not seq {header.first_seq} to {header.last_seq}")
        self._link(path, header.first_seq, header.last_seq, header.previous_sha256, sha256)

    def _compacted(self, part: Part) -> None:
        manifest_path, path = f"{part.stem}.json", f"{part.stem}.parquet"
        content = (self.root / manifest_path).read_bytes()
        manifest_sha256 = hashlib.sha256(content).hexdigest()
        if manifest_sha256 not in self.manifests:
            # It may be of a compaction that went on meanwhile; its event was on disk before it.
            self.manifests |= _recorded_manifests(self.root)
        if manifest_sha256 not in self.manifests:
            self._problem(manifest_path, "no event of the compaction says so; it was changed, or written by another")
            # Nothing it says can be trusted, so there is nothing to hold the next segment against.
            self.sha256, self.next_seq = None, None
            return
        manifest = json.loads(content)
        for merged in manifest["segments"]:
            self.report.segments += 1
            self._link(
                f"{manifest_path}: {merged['file']}",
                merged["first_seq"],
                merged["last_seq"],
                merged["previous_sha256"],
                merged["sha256"],
            )
        first_seq, last_seq = manifest["first_seq"], manifest["last_seq"]
        data = (self.root / path).read_bytes() if (self.root / path).exists() else None
        if data is None:
            self._problem(path, "it is missing")
        elif hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            self._problem(path, "its bytes were changed after it was written")
        elif not rows_are(data, self.report.writer, first_seq, last_seq):
            self._problem(path, f"its rows are not seq {first_seq} to {last_seq}")

    def _link(self, path: str, first_seq: int, last_seq: int, previous_sha256: str, sha256: str) -> None:
        """Check a segment against the one before it, and make it the one before the next."""
        if self.sha256 is not None and previous_sha256 != self.sha256:
            self._problem(path, "it does not follow the segment before it: one is missing, foreign or out of order")
        if self.next_seq is not None and first_seq != self.next_seq:
            fault = "a gap" if first_seq > self.next_seq else "a repeat"
            self._problem(path, f"{fault} in seq: it begins at {first_seq}, not {self.next_seq}")
        if last_seq >= first_seq:
            self.report.events += last_seq - first_seq + 1
            self.report.first_seq = first_seq if self.report.first_seq is None else self.report.first_seq
            self.report.last_seq = last_seq
        self.sha256, self.next_seq = sha256, last_seq + 1

    def _problem(self, path: str, what: str) -> None:
        self.report.problems.append(f"{path}: {what}")


def rows_are(content: bytes, writer: str, first_seq: int, last_seq: int) -> bool:
    """Whether a Parquet file's rows are exactly seq `first_seq` to `last_seq` of `writer`, in any order."""
    table = segments.read_rows(content, ["writer", "seq"])
    seqs = table["seq"].combine_chunks().sort()
    expected = pa.array(range(first_seq, last_seq + 1), type=pa.int64())
    return bool(seqs.equals(expected)) and pc.all(pc.equal(table["writer"], writer)).as_py() is not False


def _recorded_manifests(root: Path) -> set[str]:
    """SHA-256 of every manifest that compaction recorded as an event."""
    recorded: set[str] = set()
    for part, _ in layout.all_parts(root, COMPACTION_WRITER):
        for path in root.glob(part.pattern):
            recorded |= _manifests_in(path, None if part.compacted else segments.sha256_in(path.name))
    return recorded


def _manifests_in(path: Path, sha256: str | None) -> set[str]:
    """Manifests recorded in one file; none if it is damaged or just removed: the walk along its writer says which."""
    try:
        content = path.read_bytes()
        if sha256 is None:
            sha256 = json.loads(path.with_suffix(".json").read_bytes())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    if hashlib.sha256(content).hexdigest() != sha256:
        return set()
    events: list[dict[str, Any]] = segments.read_rows(content, ["kind", "action", "detail_json"]).to_pylist()
    details = (event["detail_json"] for event in events if event.get("action") == COMPACTED_ACTION)
    return {json.loads(detail)["manifest_sha256"] for detail in details}
