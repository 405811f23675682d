"""Answers of turns that were completed, kept for a while: a client that asks again for the same turn gets the same one.

A turn is one write at the end of a file, so that it costs the controller next to nothing. What was written outlives the
process, though not the machine's power. Files are begun anew after a while, and the oldest but one is removed. A
process goes on with the last file of the one before it: how often processes die takes nothing away.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rose.client.address import AWAY_S, GONE_S
from rose.clock import monotonic_ns
from rose.runtime.scheduling.runs.state import StateError

FOLDER = "turns"
#: An answer is kept for at least so long, unless there are more: a client whose line is cut just before it was answered
#: notices after `GONE_S`, asks for `AWAY_S`, and the last time that it asks may break as late.
KEPT_NS = round((AWAY_S + 2 * GONE_S) * 1e9)
KEPT_BYTES = 256 << 20
#: CRC-32 of the rest, and the lengths of run, key, digest, answer and events.
_HEAD = struct.Struct("<IHHBII")


@dataclass(frozen=True, slots=True)
class Kept:
    """A completed turn: a digest of its request, the answer, and its ledger events as JSON."""

    run_id: str
    key: str
    digest: bytes
    answer: bytes
    events_json: bytes


class AnswerStore:
    """Files in `folder`/turns; None: in a folder that ends with this.

    Raises StateError if they cannot be opened. Once open, a disk that refuses costs only what was to be kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="rose-turns-") if folder is None else None
        self.path = Path(self._temporary.name) if self._temporary else (folder or Path()) / FOLDER
        #: Why the disk refuses; None while all is well.
        self.failure: str | None = None
        #: Where each turn lies: file, offset and length.
        self._places: dict[tuple[str, str], tuple[_File, int, int]] = {}
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._files = [_File(path, monotonic_ns()) for path in sorted(self.path.glob("*.turns"))]
            for file in self._files:
                for kept, offset, length in file.read():
                    self._places[kept.run_id, kept.key] = (file, offset, length)
            if self._files:
                self._files[-1].cut()
            else:
                self._begin()
        except OSError as error:
            raise StateError(f"completed turns cannot be kept in {self.path}: {error}; see to its disk")

    def close(self) -> None:
        for file in self._files:
            file.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def find(self, run_id: str, key: str) -> Kept | None:
        """None: it was not completed, or too long ago."""
        place = self._places.get((run_id, key))
        return None if place is None else place[0].at(*place[1:])

    def events_json(self) -> Iterator[bytes]:
        """The ledger events of all turns that are kept, oldest first."""
        for file, offset, length in list(self._places.values()):
            if (kept := file.at(offset, length)) is not None:
                yield kept.events_json

    def keep(self, kept: Kept) -> None:
        """Another process finds it once this returns, if the disk did not refuse it."""
        try:
            file = self._files[-1]
            if file.length >= KEPT_BYTES // 2 or monotonic_ns() - file.begun_ns >= KEPT_NS:
                file = self._begin()
            self._places[kept.run_id, kept.key] = (file, *file.append(kept))
            self.failure = None
        except OSError as error:
            self.failure = f"completed turns cannot be kept in {self.path}: {error}; see to its disk"

    def _begin(self) -> _File:
        """Another file. What lies in all but the last one before it is forgotten."""
        number = int(self._files[-1].path.stem) + 1 if self._files else 0
        file = _File(self.path / f"{number:012}.turns", monotonic_ns())
        old, self._files = self._files[:-1], [*self._files[-1:], file]
        for gone in old:
            gone.remove()
        self._places = {name: place for name, place in self._places.items() if place[0] not in old}
        return file


class _File:
    """Turns one after the other. A file whose last turn was not written whole ends before it."""

    def __init__(self, path: Path, begun_ns: int) -> None:
        self.path, self.begun_ns = path, begun_ns
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.length = os.fstat(self._descriptor).st_size

    def append(self, kept: Kept) -> tuple[int, int]:
        """Returns offset and length. Raises OSError, and then the file is as it was."""
        names = kept.run_id.encode(), kept.key.encode()
        parts = (*names, kept.digest, kept.answer, kept.events_json)
        rest = b"".join(parts)
        record = _HEAD.pack(zlib.crc32(rest), *map(len, parts)) + rest
        written = os.pwrite(self._descriptor, record, self.length)
        if written < len(record):
            raise OSError(f"{self.path} took {written} of {len(record)} bytes")
        offset, self.length = self.length, self.length + len(record)
        return offset, len(record)

    def at(self, offset: int, length: int) -> Kept | None:
        """None: the disk refuses, or it is damaged."""
        try:
            record = os.pread(self._descriptor, length, offset)
        except OSError:
            return None
        return _parse(record)

    def read(self) -> Iterator[tuple[Kept, int, int]]:
        """(turn, offset, length) of all that was written whole."""
        offset = 0
        while len(head := os.pread(self._descriptor, _HEAD.size, offset)) == _HEAD.size:
            length = _HEAD.size + sum(_HEAD.unpack(head)[1:])
            kept = self.at(offset, length) if offset + length <= self.length else None
            if kept is None:
                break
            yield kept, offset, length
            offset += length
        self.length = offset

    def cut(self) -> None:
        """Drop what lies behind the last turn that was written whole: it must not follow one that is shorter."""
        os.ftruncate(self._descriptor, self.length)

    def close(self) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _parse(record: bytes) -> Kept | None:
    crc, *lengths = _HEAD.unpack_from(record)
    if len(record) != _HEAD.size + sum(lengths) or zlib.crc32(record[_HEAD.size :]) != crc:
        return None
    parts, offset = [], _HEAD.size
    for length in lengths:
        parts.append(record[offset : offset + length])
        offset += length
    run_id, key, digest, answer, events_json = parts
    return Kept(run_id.decode(), key.decode(), digest, answer, events_json)
