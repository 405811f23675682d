"""Segments: immutable Parquet files. The name has the file's SHA-256; the header has the previous file's SHA-256, and
the segment's link in a signed chain of row digests."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from rose.ledger.files import keys, layout, registry, rows
from rose.ledger.files.content import rows_sha256
from rose.ledger.files.keys import Key
from rose.ledger.files.layout import LedgerError, Part

SEGMENTS_PER_EPOCH = 100
_METADATA_KEY = b"rose"
_CHAIN_TAG = "rose segment 1"
_SIGNATURE_TAG = b"rose segment signature 1\n"
_LOOKS = 3  # A compaction may move the newest part between two looks.


@dataclass(frozen=True, slots=True)
class Header:
    writer: str
    epoch: int
    index: int
    first_seq: int  # A segment without rows has last_seq = first_seq - 1.
    last_seq: int
    previous_sha256: str  # Empty for a writer's first segment.
    #: Digest of the rows (see `rose.ledger.files.content`), and its link of the chain.
    rows_sha256: str
    chain_sha256: str
    #: The public key that signed the link, and the signature; empty if unsigned.
    key: str = ""
    signature: str = ""
    format_version: int = layout.FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Head:
    """Two paths that a writer notes: `announced` before it writes a segment, and `segment` afterwards. If the writer is
    killed, the newest segment is at one of the two paths. After a power cut, both paths may be outdated."""

    segment: str | None = None
    announced: str | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a writer's chain. A new writer has epoch -1."""

    writer: str
    epoch: int = -1
    next_index: int = 0
    next_seq: int = 0
    sha256: str = ""
    link: str = ""
    signed_by: str = ""
    key: Key | None = None


def chain_sha256(previous: str, writer: str, first_seq: int, last_seq: int, rows_sha256: str) -> str:
    """Return the link of a segment, a SHA-256. `previous` is the link before it ("" for the first segment)."""
    parts = [_CHAIN_TAG, previous, writer, first_seq, last_seq, rows_sha256]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def link_message(chain_sha256: str) -> bytes:
    return _SIGNATURE_TAG + chain_sha256.encode()


@dataclass(frozen=True, slots=True)
class Link:
    writer: str
    #: Original path of the segment, and the SHA-256 of its file and of the file before.
    file: str
    sha256: str
    previous_sha256: str
    first_seq: int
    last_seq: int
    rows_sha256: str
    chain_sha256: str
    #: The signer's public key, and the signature; empty if unsigned.
    key: str
    signature: str

    @classmethod
    def read(cls, writer: str, entry: Mapping[str, Any]) -> Self:
        link = cls(writer, **{name: entry[name] for name in cls.__slots__ if name != "writer"})
        for name in cls.__slots__:
            if type(getattr(link, name)) is not (int if name.endswith("_seq") else str):
                raise TypeError(name)
        if not (link.rows_sha256 and link.chain_sha256):
            raise ValueError("a segment without a digest of its rows")
        return link

    def entry(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "writer"}

    @property
    def events(self) -> int:
        return self.last_seq - self.first_seq + 1

    def fault(self, previous: str | None) -> str | None:
        digest = (self.writer, self.first_seq, self.last_seq, self.rows_sha256)
        if previous is not None and self.chain_sha256 != chain_sha256(previous, *digest):
            return "its content does not follow the segment before it: it, or an earlier segment, was replaced"
        return None

    def signature_fault(self) -> str | None:
        if not (self.key or self.signature) or keys.check(self.key, link_message(self.chain_sha256), self.signature):
            return None
        return f"its signature is not by the key {self.key!r} that it names: another signed it, or it was changed"


def write_next(root: Path, tail: Tail, table: pa.Table) -> Tail:
    """Write `table` to disk as the next segment, and return the chain's new end. After an OSError, call `recover`."""
    ends = (table["seq"][0].as_py(), table["seq"][-1].as_py())
    assert ends == (tail.next_seq, tail.next_seq + table.num_rows - 1)
    _register(root, tail)
    after, path, content = _next(tail, table)
    put(root, path, content)
    _write_head(root, tail.writer, path)
    return after


def put(root: Path, path: str, content: bytes) -> None:
    """Announce and write a segment. A new folder appears only with a segment in it: DuckDB fails on empty folders."""
    target = root / path
    folder = target.parent
    if place(path)[1] > 0:
        announce(root, folder.parent.name, path)
        layout.write_file(target, content)
        return
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    layout.write_file(temporary / target.name, content)
    announce(root, folder.parent.name, path)
    temporary.rename(folder)
    layout.sync_folder(folder.parent)


def recover(root: Path, writer: str) -> Tail:
    """Return the end of `writer`'s chain. Raises LedgerError if the newest segment is damaged or gone."""
    way_out = "Run `rose ledger verify`, restore the file, or use another writer name"
    head = read_head(root, writer).segment
    if not (numbers := layout.epochs(root, writer)):
        if head is None and not layout.parts(root, writer):
            return Tail(writer, key=keys.load_or_make())
        raise LedgerError(f"the live segments of writer {writer!r} are gone from {root}. {way_out}")
    folder = root / "live" / writer / f"{numbers[-1]:06d}"
    for leftover in (*folder.glob(".*.tmp"), *(root / "heads").glob(f".{writer}.json.*.tmp")):
        leftover.unlink(missing_ok=True)
    if not (names := segment_names(folder)):
        raise LedgerError(f"epoch {folder} has no segment. {way_out}")
    path = folder / names[-1]
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256_in(path.name) != sha256:
        raise LedgerError(f"segment {path} was changed after it was written. {way_out}")
    if head is not None and not (root / head).exists() and place(str(path.relative_to(root))) <= place(head):
        raise LedgerError(f"segment {root / head}, the newest of writer {writer!r}, is gone. {way_out}")
    layout.sync_folder(folder)
    header = read_header(content)
    last, key = link(header, sha256), keys.load_or_make()
    if (fault := last.signature_fault()) is not None:
        raise LedgerError(f"segment {path}: {fault}. {way_out}")
    _write_head(root, writer, last.file)
    if not header.key or (key is not None and header.key == key.public):
        registry.note(root, writer, header.key, key)
    return Tail(writer, header.epoch, header.index + 1, header.last_seq + 1, sha256, last.chain_sha256, header.key, key)


def begin_epoch(root: Path, tail: Tail) -> Tail:
    """Open the next epoch with a segment that has all columns and no rows: DuckDB fails on a pattern without files."""
    tail = replace(tail, epoch=tail.epoch + 1, next_index=0)
    home = root / "live" / tail.writer
    if tail.epoch == 0:
        # Later epochs need the folder: a chain does not continue in an empty one.
        home.parent.mkdir(exist_ok=True)
        home.mkdir(exist_ok=True)
    else:
        _register(root, tail)
    tail, path, content = _next(tail, rows.schema().empty_table())
    put(root, path, content)
    _write_head(root, tail.writer, path)
    # Last: a writer in the registry without a segment counts as one whose segments were removed.
    registry.note(root, tail.writer, tail.signed_by, tail.key)
    return tail


def check_key(tail: Tail) -> None:
    if tail.signed_by and tail.key is None:
        raise LedgerError(
            f"writer {tail.writer!r} signs with the key {tail.signed_by}, which is missing here: "
            f"restore its file, name the file in {keys.VARIABLE}, or let this user write to the folder of the file"
        )


def announce(root: Path, writer: str, segment: str) -> None:
    """Note the path of the next segment of `writer`; an empty path means none."""
    path = _announcement(root, writer)
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{segment}\n".encode())
    finally:
        os.close(descriptor)


def segment_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if layout.SEGMENT_NAME.fullmatch(path.name))


def end_seq(root: Path, part: Part) -> int:
    if part.state != "live":
        return int(json.loads((root / part.manifest).read_bytes())["last_seq"]) + 1
    folder = root / part.folder
    return read_header((folder / segment_names(folder)[-1]).read_bytes()).last_seq + 1


def newest_links(root: Path) -> dict[str, Link]:
    links = {writer: newest_link(root, writer) for writer in layout.writers(root)}
    return {writer: link for writer, link in links.items() if link is not None}


def newest_link(root: Path, writer: str) -> Link | None:
    for look in range(_LOOKS):
        if not (parts := layout.chain(root, writer)):
            return None  # The writer was killed before its first segment.
        part = parts[-1]
        try:
            if part.state != "live":
                return Link.read(writer, json.loads((root / part.manifest).read_bytes())["segments"][-1])
            path = root / part.folder / segment_names(root / part.folder)[-1]
            return link(read_header(path.read_bytes()), sha256_in(path.name))
        except (LedgerError, OSError, ValueError, LookupError, TypeError) as error:
            if look == _LOOKS - 1 or not isinstance(error, FileNotFoundError):
                raise LedgerError(f"live/{writer}: its newest segment is damaged. Run `rose ledger verify`") from error
    return None


def sha256_in(name: str) -> str:
    return name.removesuffix(".parquet").rpartition("-")[2]


def read_header(content: bytes) -> Header:
    try:
        header = Header(**json.loads(pq.read_metadata(pa.BufferReader(content)).metadata[_METADATA_KEY]))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"not a segment: {error}") from error
    texts = (header.writer, header.previous_sha256, header.rows_sha256, header.chain_sha256, header.key)
    if not all(isinstance(text, str) for text in (*texts, header.signature)):
        raise LedgerError("not a segment: a name, digest, key or signature in its header is not text")
    numbers = (header.epoch, header.index, header.first_seq, header.last_seq)
    if not all(type(number) is int and -1 <= number < 2**63 for number in numbers):
        raise LedgerError("not a segment: a number in its header is not valid")
    return header


def link(header: Header, sha256: str) -> Link:
    file = f"live/{header.writer}/{header.epoch:06d}/{header.index:06d}-{sha256}.parquet"
    signed = (header.rows_sha256, header.chain_sha256, header.key, header.signature)
    return Link(header.writer, file, sha256, header.previous_sha256, header.first_seq, header.last_seq, *signed)


def read_rows(content: bytes, columns: Sequence[str]) -> pa.Table:
    """Return the file's columns that are in `columns`. No threads are used: with threads, pyarrow 26 aborts at exit."""
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    return file.read([name for name in columns if name in file.schema_arrow.names], use_threads=False)


def read_head(root: Path, writer: str) -> Head:
    """Return a writer's notes about its newest segment. After a power cut they may be outdated. Raises LedgerError."""
    content, announced = b"", b""
    try:
        with suppress(FileNotFoundError):
            content = (root / "heads" / f"{writer}.json").read_bytes()
        with suppress(FileNotFoundError):
            announced = _announcement(root, writer).read_bytes().partition(b"\n")[0]
    except OSError as error:
        raise LedgerError(f"{error.filename} cannot be read ({error.strerror}); move it away") from error
    try:
        segment = json.loads(content).get("segment") if content else None
        if segment is not None:
            place(segment)
            if not segment.startswith(f"live/{writer}/"):
                raise ValueError(segment)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(f"heads/{writer}.json is damaged; delete it if `rose ledger verify` is clean") from error
    return Head(segment, announced.decode(errors="replace") or None)


def place(segment: str) -> tuple[int, int]:
    """Return the epoch and index of a segment. Segments are sorted by them. Raises ValueError."""
    if not segment:
        return -1, -1
    _, _, epoch, name = segment.split("/")
    return int(epoch), int(name.partition("-")[0])


def _next(tail: Tail, table: pa.Table) -> tuple[Tail, str, bytes]:
    last_seq = tail.next_seq + table.num_rows - 1
    table = table.combine_chunks()
    digest = rows_sha256(table)
    chain = chain_sha256(tail.link, tail.writer, tail.next_seq, last_seq, digest)
    header = Header(tail.writer, tail.epoch, tail.next_index, tail.next_seq, last_seq, tail.sha256, digest, chain)
    if tail.key is not None:
        header = replace(header, key=tail.key.public, signature=tail.key.sign(link_message(chain)))
    buffer = io.BytesIO()
    # A dictionary costs more than it saves in a file of a few rows, and for numbers in any.
    texts = [column.name for column in table.schema if pa.types.is_string(column.type)]
    dictionary = texts if table.num_rows > 1000 else []
    with pq.ParquetWriter(
        buffer, table.schema, compression="zstd", store_schema=False, use_dictionary=dictionary or False
    ) as file:
        file.write_table(table)
        file.add_key_value_metadata({_METADATA_KEY: json.dumps(asdict(header)).encode()})
    segment = buffer.getvalue()
    sha256 = hashlib.sha256(segment).hexdigest()
    path = link(header, sha256).file
    after = Tail(tail.writer, tail.epoch, tail.next_index + 1, last_seq + 1, sha256, chain, header.key, tail.key)
    return after, path, segment


def _register(root: Path, tail: Tail) -> None:
    check_key(tail)
    if tail.key is not None and tail.key.public != tail.signed_by:
        registry.note(root, tail.writer, tail.key.public, tail.key)


def _announcement(root: Path, writer: str) -> Path:
    return root / "heads" / f"{writer}.next"


def _write_head(root: Path, writer: str, segment: str) -> None:
    """Note the newest segment, without a sync to disk: a sync would take as long as writing the segment."""
    path = root / "heads" / f"{writer}.json"
    path.parent.mkdir(exist_ok=True)
    layout.write_file(path, json.dumps({"segment": segment}).encode(), sync=False)
    announce(root, writer, "")
