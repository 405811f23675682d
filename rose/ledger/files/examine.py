"""Checks each file of a ledger by itself, and remembers the results."""

import errno
import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rose.ledger.files import layout, segments
from rose.ledger.files.content import ranges_sha256
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.segments import Link

CHANGED = "its bytes were changed after it was written"
_OTHER_ROWS = "its rows do not match the digest of its writer: they were replaced"
#: Fields that events of these actions must have, with their types.
_DETAILS: dict[str, dict[str, type]] = {
    "compacted": {"writer": str, "last_seq": int, "sha256": str, "manifest_sha256": str},
    "archived": {"file": str, "manifest_sha256": str, "deleted": bool},
    "restored": {"file": str, "manifest_sha256": str},
    "rolled_up": {"coverage_sha256": str},
    "adopted": {"name": str, "version": str, "sha256": str, "text": str, "adopted_us": int, "adopted_by": str},
}
_SAYS: dict[str, type] = {"first_seq": int, "last_seq": int, "sha256": str}
_T = TypeVar("_T")


class Seen:
    """What this process found in each file. A file with the same size, inode and times is not read again.

    So only a full verification finds bytes that decayed on the disk. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: By kind and path; `verified.save` keeps them for the next process.
        self.entries: dict[tuple[str, str], tuple[tuple[int, ...], Any]] = {}
        #: Start of the last verification of every byte with the same findings, UTC microseconds; 0 for none.
        self.full_until_us = 0
        self._visited: set[tuple[str, str]] = set()

    def facts(self, path: Path, kind: str, look: Callable[[bytes], _T]) -> _T:
        """Return `look(content)` for the file, cached under `kind` until the file changes. Raises OSError."""
        key = (kind, str(path))
        stat = path.stat()  # Before the bytes, so that a change meanwhile shows in the times.
        stamp = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        entry = self.entries.get(key)
        if entry is None or entry[0] != stamp:
            entry = self.entries[key] = stamp, look(_read(path))
        self._visited.add(key)
        return cast(_T, entry[1])

    def once(self, path: Path, kind: str, look: Callable[[], _T]) -> _T:
        """Return `look()`, cached under `path` and `kind`. `kind` must contain a hash of each input of `look`."""
        key = (kind, str(path))
        if key not in self.entries:
            self.entries[key] = (), look()
        self._visited.add(key)
        return cast(_T, self.entries[key][1])

    def forget_where_other(self, later: Self) -> None:
        self.entries = {key: entry for key, entry in self.entries.items() if later.entries.get(key, entry) == entry}

    def forget_unvisited(self) -> None:
        self.entries = {key: entry for key, entry in self.entries.items() if key in self._visited}
        self._visited = set()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise layout.refused(f"cannot read {path}", error) from error
        raise


@dataclass(frozen=True, slots=True)
class Segment:
    header: segments.Header | None  # None without a trustworthy one; `fault` then says why.
    fault: str | None
    unchecked: tuple[str, ...] = ()


def segment(content: bytes, sha256: str) -> Segment:
    if hashlib.sha256(content).hexdigest() != sha256:
        return Segment(None, CHANGED)
    header = None
    try:
        header = segments.read_header(content)
        link = segments.link(header, sha256)
        seqs = segments.read_rows(content, ["seq"])["seq"].to_numpy()
        digests, unchecked = ranges_sha256(content, [header.first_seq])
    except pa.ArrowNotImplementedError as error:
        return Segment(header, None, (_unreadable(error),))
    except (LedgerError, pa.ArrowException, KeyError, OSError) as error:
        return Segment(None, f"a foreign file: {error}")
    # The count first: the header may claim more rows than fit in memory.
    count = header.last_seq - header.first_seq + 1
    if len(seqs) != count or not np.array_equal(seqs, np.arange(header.first_seq, header.last_seq + 1)):
        return Segment(header, f"its rows are not seq {header.first_seq} to {header.last_seq}")
    if digests != [link.rows_sha256]:
        return Segment(header, _OTHER_ROWS)
    return Segment(header, link.signature_fault(), tuple(unchecked))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read. The segments that it lists were checked, but are not kept here."""

    sha256: str
    said: dict[str, Any]
    segments: int
    first: Link
    last: Link
    #: Runs of segments with one signer ("" for none): the key, path and first seq of the first segment, and the events.
    signers: tuple[tuple[str, str, int, int], ...]
    faults: tuple[str, ...]


def merged_files(content: bytes) -> list[str]:
    return [link.file for link in links(content)]


def holds(root: Path, writer: str, segment: str, seen: Seen) -> bool:
    """Return whether the ledger has this segment of `writer`, as a file or in a merged part."""
    with suppress(ValueError):
        epoch, _ = segments.place(segment)
        for _ in range(2):  # Its part may be merged between the looks.
            for part in layout.chain(root, writer):
                if not part.first <= epoch <= part.last:
                    continue
                if part.state == "live" and (root / segment).exists():
                    return True
                with suppress(OSError):
                    if part.state != "live" and segment in seen.facts(root / part.manifest, "files", merged_files):
                        return True
    return False


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def manifest(content: bytes) -> Manifest:
    sha256, merged = sha256_of(content), links(content)
    said = json.loads(content) if merged else {}
    if not merged or not all(isinstance(said.get(name), kind) for name, kind in _SAYS.items()):
        none = Link("", "", "", "", 0, -1, "", "", "", "")
        return Manifest(sha256, {}, 0, none, none, (), ())
    del said["segments"]
    faults: list[str] = []
    signers: list[tuple[str, str, int, int]] = []
    before: Link | None = None
    for link in merged:
        wrong = [link.fault(None if before is None else before.chain_sha256), link.signature_fault()]
        if before is not None:
            wrong += link_faults(before.sha256, before.last_seq + 1, link.previous_sha256, link.first_seq)
        faults += (f"{link.file}: {fault}" for fault in wrong if fault is not None)
        if before is None or before.key != link.key:
            signers.append((link.key, link.file, link.first_seq, 0))
        signers[-1] = (*signers[-1][:3], signers[-1][3] + link.events)
        before = link
    return Manifest(sha256, said, len(merged), merged[0], merged[-1], tuple(signers), tuple(faults))


def links(content: bytes) -> list[Link]:
    try:
        detail = json.loads(content)
        return [Link.read(detail["writer"], entry) for entry in detail["segments"]]
    except (ValueError, KeyError, TypeError):
        return []


def link_faults(sha256: str | None, next_seq: int | None, previous_sha256: str, first_seq: int) -> Iterator[str]:
    """Yield the faults of a segment's place in its chain. The segment states `previous_sha256` and `first_seq`. The
    expected values, from the segment before, are `sha256` and `next_seq` (None: unknown)."""
    if sha256 is not None and previous_sha256 != sha256:
        yield "it does not follow the segment before it: a segment is missing, foreign or out of order"
    if next_seq is not None and first_seq != next_seq:
        fault = "a gap" if first_seq > next_seq else "a repeat"
        yield f"{fault} in seq: it begins at {first_seq}, not {next_seq}"


def rows(content: bytes, manifest_content: bytes) -> Segment:
    detail, merged = json.loads(manifest_content), links(manifest_content)
    if hashlib.sha256(content).hexdigest() != detail["sha256"]:
        return Segment(None, CHANGED)
    try:
        if not rows_are(content, detail["writer"], detail["first_seq"], detail["last_seq"]):
            return Segment(None, f"its rows are not seq {detail['first_seq']} to {detail['last_seq']}")
        digests, unchecked = ranges_sha256(content, [link.first_seq for link in merged])
    except pa.ArrowNotImplementedError as error:
        return Segment(None, None, (_unreadable(error),))
    except (LedgerError, pa.ArrowException, KeyError, OSError) as error:
        return Segment(None, f"its rows cannot be read: {error}")
    for link, digest in zip(merged, digests, strict=True):
        if link.rows_sha256 != digest:
            fault = f"its rows of seq {link.first_seq} to {link.last_seq} were replaced after they were written"
            return Segment(None, fault)
    return Segment(None, None, tuple(unchecked))


def _unreadable(error: pa.ArrowNotImplementedError) -> str:
    return f"the rows, which this version cannot decode ({error})"


def rows_are(content: bytes, writer: str, first_seq: int, last_seq: int) -> bool:
    table = segments.read_rows(content, ["writer", "seq"])
    seqs = np.sort(table["seq"].to_numpy())
    if len(seqs) != last_seq - first_seq + 1 or not np.array_equal(seqs, np.arange(first_seq, last_seq + 1)):
        return False
    return pc.all(pc.equal(table["writer"], writer)).as_py() is not False


def recorded(root: Path, writer: str, action: str, seen: Seen | None = None) -> list[dict[str, Any]]:
    """Return details of a writer's `ledger` events with this action, sorted by seq. Damaged files count as empty."""
    return [detail for what, detail in all_recorded(root, writer, seen) if what == action]


def all_recorded(root: Path, writer: str, seen: Seen | None = None) -> list[tuple[str, dict[str, Any]]]:
    return [(action, detail) for _, action, detail in _events(root, writer, seen) if _says_all(action, detail)]


def detail_faults(root: Path, writer: str, seen: Seen | None = None) -> list[str]:
    return [
        f"live/{writer}: seq {seq}: the event {action!r} lacks the details of its action: no `rose` command wrote it"
        for seq, action, detail in _events(root, writer, seen)
        if not _says_all(action, detail)
    ]


def _says_all(action: str, detail: Any) -> bool:
    if not isinstance(detail, dict):
        return False
    return all(type(detail.get(name)) is kind for name, kind in _DETAILS.get(action, {}).items())


def _events(root: Path, writer: str, seen: Seen | None) -> list[tuple[int, str, Any]]:
    seen = seen or Seen()
    events: list[tuple[int, str, Any]] = []
    for part in layout.parts(root, writer):
        for path in sorted(root.glob(part.pattern)):
            # `Chain` reports the faults of a damaged file.
            with suppress(OSError, ValueError, KeyError, TypeError):
                sha256 = segments.sha256_in(path.name)
                if part.state == "compacted":
                    sha256 = str(json.loads((root / part.manifest).read_bytes())["sha256"])
                events += seen.facts(path, f"events {sha256}", functools.partial(_detail_events, sha256=sha256))
    return sorted(events, key=lambda event: event[0])


def _detail_events(content: bytes, sha256: str) -> list[tuple[int, str, Any]]:
    if hashlib.sha256(content).hexdigest() != sha256:
        return []
    rows = segments.read_rows(content, ["seq", "action", "detail_json"]).to_pylist()
    return [(row["seq"], row["action"], _json(row["detail_json"])) for row in rows if row.get("detail_json")]


def _json(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return None
