"""Receives segments from other hosts. Each segment must be the next in its chain, and is written unchanged."""

import hashlib
import os
import re
import threading
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rose.events import KINDS, Access, Provenance
from rose.ledger.files import catalog, examine, keys, layout, registry, rows, segments, spool
from rose.ledger.files.content import rows_sha256
from rose.ledger.files.examine import Seen
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.segments import Link, Tail
from rose.ledger.ledger import Ledger
from rose.ledger.writer import take_name

SEGMENT_BYTES_MAX = 64 * 1024**2
_ROWS_MAX = 2_000_000  # A small file can claim to unpack to any size.
_UNPACKED_BYTES_MAX = 1024**3
_REQUIRED = frozenset({"writer", "seq", "run_id", "provenance", "at_us", "kind"})
_PATH = re.compile(r"live/(?P<writer>[^/]+)/(?P<epoch>\d{6,})/(?P<name>\d{6}-[0-9a-f]{64}\.parquet)")


@dataclass(frozen=True, slots=True)
class ChainEnd:
    epoch: int
    index: int
    next_seq: int
    sha256: str


class Receiver:
    """Writes other hosts' segments into a ledger. Thread-safe. Local processes cannot use the names of the writers."""

    def __init__(self, ledger: Ledger) -> None:
        self.folder = ledger.folder
        self._mutex = threading.Lock()
        self._busy: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._names: dict[str, int] = {}
        #: Each writer's end on disk. A failed write removes it, so that it is read again.
        self._tails: dict[str, Tail] = {}
        self._registered: set[tuple[str, str]] = set()
        self._unshown: set[str] = set()

    def ends(self, writers: Collection[str] | None = None) -> dict[str, ChainEnd]:
        """Return the chain ends of `writers` (None: all). Local writers and damaged ends are left out."""
        ends = {}
        for writer in layout.writers(self.folder):
            if spool.is_local(writer) or (writers is not None and writer not in writers):
                continue
            with suppress(LedgerError, OSError):
                if (link := segments.newest_link(self.folder, writer)) is not None:
                    ends[writer] = ChainEnd(*segments.place(link.file), link.last_seq + 1, link.sha256)
        return ends

    def receive(self, path: str, content: bytes) -> ChainEnd:
        """Check a segment, and write it to `path`; it is then on disk. After a LedgerError, nothing has changed."""
        header, sha256 = check(path, content)
        with self._mutex:
            busy = self._busy[header.writer]
        with busy:
            tail = self._tail(header.writer)
            if (header.epoch, header.index) < (tail.epoch, tail.next_index):
                if not examine.holds(self.folder, header.writer, path, Seen()):
                    raise LedgerError(_fork(path, header.writer))
            else:
                self._check_next(path, header, tail)
                self._check_signed(path, segments.link(header, sha256), tail)
                self._tails.pop(header.writer)
                if header.index == 0:
                    # A host without an acknowledgement still continues with the next segment.
                    self._unshown.add(header.writer)
                with layout.refusals(f"cannot write {self.folder / path}"):
                    layout.make_folder((self.folder / path).parents[1])
                    segments.put(self.folder, path, content)
                if (header.writer, header.key) not in self._registered:
                    registry.note(self.folder, header.writer, header.key, keys.load_or_make())
                    self._registered.add((header.writer, header.key))
                self._tail(header.writer)
            if header.index == 0 or header.writer in self._unshown:
                self._unshown.add(header.writer)
                catalog.refresh_sound(self.folder)
                self._unshown.discard(header.writer)
        return ChainEnd(header.epoch, header.index, header.last_seq + 1, sha256)

    def close(self) -> None:
        with self._mutex:
            for lock in self._names.values():
                os.close(lock)
            self._names.clear()

    def _tail(self, writer: str) -> Tail:
        if writer not in self._names:
            self._names[writer] = take_name(self.folder, writer)
        if writer not in self._tails:
            self._tails[writer] = segments.recover(self.folder, writer)
        return self._tails[writer]

    def _check_next(self, path: str, header: segments.Header, tail: Tail) -> None:
        if (header.epoch, header.index) not in ((tail.epoch, tail.next_index), (tail.epoch + 1, 0)):
            raise LedgerError(
                f"{path}: not the next segment of {header.writer!r}, which is segment {tail.next_index} of epoch "
                f"{max(tail.epoch, 0)}. Send segments in the order in which they were written, from the first"
            )
        if header.previous_sha256 != tail.sha256 or header.first_seq != tail.next_seq:
            raise LedgerError(_fork(path, header.writer))

    def _check_signed(self, path: str, link: Link, tail: Tail) -> None:
        if (fault := link.fault(tail.link) or link.signature_fault()) is not None:
            raise LedgerError(f"{path}: {fault}. Run `rose ledger verify` on the host that wrote it")
        if not link.key:
            if tail.signed_by:
                raise LedgerError(
                    f"{path}: it is unsigned, but writer {link.writer!r} signed its earlier segments with the key "
                    f"{tail.signed_by}. Restore this key on the writer's host, or use another writer name there"
                )
            return
        if (link.writer, link.key) in self._registered:
            return
        known = registry.lines(self.folder)
        endorsed = {key for writer, key in registry.endorsements(known).pairs if writer == link.writer}
        allowed = endorsed or registry.keys_of(known, link.writer)
        if allowed and link.key not in allowed:
            raise LedgerError(
                f"{path}: writer {link.writer!r} signs with the key {link.key}, which is not its earlier key. If "
                f"its host has a new key, run `rose ledger endorse {link.key} --writer {link.writer}` at the controller"
            )


def check(path: str, content: bytes) -> tuple[segments.Header, str]:
    if (match := _PATH.fullmatch(path)) is None:
        raise LedgerError(f"{path!r} is not the path of a segment, live/<writer>/<epoch>/<index>-<sha256>.parquet")
    writer = match["writer"]
    layout.check_writer_name(writer)
    if spool.is_local(writer):
        raise LedgerError(f"{path}: events of writer {writer!r} concern one folder only, and are not forwarded")
    if len(content) > SEGMENT_BYTES_MAX:
        raise LedgerError(f"{path}: {len(content)} bytes; a segment may have at most {SEGMENT_BYTES_MAX}")
    sha256 = segments.sha256_in(match["name"])
    if hashlib.sha256(content).hexdigest() != sha256:
        raise LedgerError(f"{path}: its bytes do not match its name; it was damaged on the way or before")
    try:
        header = segments.read_header(content)
        if header.format_version != layout.FORMAT_VERSION:
            raise LedgerError(f"{path}: format {header.format_version!r}; the ledger takes {layout.FORMAT_VERSION}")
        if path != (named := segments.link(header, sha256).file):
            raise LedgerError(f"{path}: its header says that it is {named}")
        if header.index > segments.SEGMENTS_PER_EPOCH:
            raise LedgerError(f"{path}: an epoch has at most {segments.SEGMENTS_PER_EPOCH} segments after its first")
        table = _read(path, content)
        table.validate(full=True)  # Invalid text would keep every reader from the file.
        _check_rows(path, header, table)
        if rows_sha256(table) != header.rows_sha256:
            raise LedgerError(f"{path}: its rows do not match the digest of its writer")
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise LedgerError(f"{path}: not a segment: {error}") from error
    return header, sha256


def _read(path: str, content: bytes) -> pa.Table:
    """Return all columns. Texts are read as dictionaries, so that no file unpacks to more than its header says."""
    metadata = pq.read_metadata(pa.BufferReader(content))
    unpacked_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if metadata.num_rows > _ROWS_MAX or unpacked_bytes > _UNPACKED_BYTES_MAX:
        raise LedgerError(f"{path}: {metadata.num_rows} rows of {unpacked_bytes} bytes in all: too much for a segment")
    schema = pq.read_schema(pa.BufferReader(content))
    known = rows.schema()
    for field in schema:
        if field.name not in known.names or field.type != known.field(field.name).type:
            raise LedgerError(
                f"{path}: column {field.name!r} of type {field.type} is not known here; "
                "the controller's host needs the version of ROSE that wrote it, or a newer one"
            )
    if missing := _REQUIRED - set(schema.names):
        raise LedgerError(f"{path}: column {min(missing)!r} is missing")
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False, read_dictionary=texts).read(use_threads=False)


def _check_rows(path: str, header: segments.Header, table: pa.Table) -> None:
    seqs = table["seq"].to_numpy()
    if header.last_seq - header.first_seq + 1 != len(seqs) or not np.array_equal(
        seqs, np.arange(header.first_seq, header.last_seq + 1)
    ):
        raise LedgerError(f"{path}: its rows are not seq {header.first_seq} to {header.last_seq}")
    allowed = {"writer": [header.writer], "provenance": get_args(Provenance), "kind": [*KINDS.keys() - {Access.kind}]}
    for name, values in allowed.items():
        if wrong := set(pc.unique(table[name]).to_pylist()) - set(values):
            raise LedgerError(f"{path}: {name} {min(map(str, wrong))!r} is not one of {', '.join(values)}")
    for name in ("run_id", "at_us"):
        if table[name].null_count:
            raise LedgerError(f"{path}: {name} is missing in some row")


def _fork(path: str, writer: str) -> str:
    return (
        f"{path}: writer {writer!r} has another history here, so its name is used on two hosts, or its ledger was made "
        "anew. Nothing was overwritten. Give that host's processes other writer names"
    )
