"""What a writer signs: a digest of its events' content, however Parquet stores them, and the chain of these digests.

The digest of rows is the SHA-256 of a tag, the number of rows, and of each column that has a value, in the order of
their names: its name, its type, the number of its values, which rows have one (a bit a row, where not all do), and the
values in the order of seq. Integers and floats are 8 bytes, little endian; truths 1 byte; texts the 4-byte length of
each, then all of their UTF-8.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rose.ledger.layout import LedgerError

_ROWS_TAG = b"rose rows 1\n"
_CHAIN_TAG = "rose segment 1"
_SIGNATURE_TAG = b"rose segment signature 1\n"
#: The types that events have, and how NumPy reads those of fixed width.
_TYPES = {pa.int64(): "<i8", pa.float64(): "<f8", pa.bool_(): "?", pa.string(): ""}


def rows_sha256(table: pa.Table) -> str:
    """The digest of the rows, in hexadecimal: one for all encodings, chunkings and orders of rows and columns.

    Raises LedgerError for a column of a type that no event has, and if a row has no seq.
    """
    return _digests(table.column_names, table.column, [])[0]


def ranges_sha256(content: bytes, first_seqs: Sequence[int]) -> list[str]:
    """The digests of the rows of a Parquet file, cut before each of `first_seqs` but the first, which go up.

    Raises LedgerError like `rows_sha256`, and what Arrow raises for a file that it cannot read.
    """
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)

    def read(name: str) -> pa.ChunkedArray:
        # In this thread: see segments.read_rows.
        return file.read([name], use_threads=False).column(0)

    # One column at a time: a million rows with all their columns would take gigabytes.
    return _digests(file.schema_arrow.names, read, first_seqs[1:])


def chain_sha256(previous: str, writer: str, first_seq: int, last_seq: int, rows_sha256: str) -> str:
    """The link of a segment: it commits to the events of this segment and, by `previous`, of all before it.

    `previous` is the link of the segment before it: its own `chain_sha256`, or the SHA-256 of its file where it was
    written without one; empty for a writer's first.
    """
    parts = [_CHAIN_TAG, previous, writer, first_seq, last_seq, rows_sha256]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def link_message(chain_sha256: str) -> bytes:
    """What the signature of a segment is over."""
    return _SIGNATURE_TAG + chain_sha256.encode()


def _digests(names: Sequence[str], read: Callable[[str], pa.ChunkedArray], cuts: Sequence[int]) -> list[str]:
    """The digests of the rows between the cuts, which are seqs."""
    if "seq" not in names or len(set(names)) < len(names):
        raise LedgerError("a column 'seq' is missing, or some column is there twice")
    seq = _plain("seq", read("seq"))
    if seq.null_count:
        raise LedgerError("a row has no seq")
    seqs, order = _fixed(seq), None
    if np.any(seqs[1:] < seqs[:-1]):
        order = np.argsort(seqs, kind="stable")
        seqs = seqs[order]
    bounds = [0, *np.searchsorted(seqs, cuts).tolist(), len(seqs)] if cuts else [0, len(seqs)]
    counts = [last - first for first, last in itertools.pairwise(bounds)]
    digests = [hashlib.sha256(_ROWS_TAG + count.to_bytes(8, "little")) for count in counts]
    ranks = None if order is None else np.argsort(order)
    for name in sorted(names):
        column = read(name)
        if column.null_count < len(column):
            _add(digests, bounds, name, _plain(name, column), order, ranks)
    return [digest.hexdigest() for digest in digests]


def _plain(name: str, column: pa.ChunkedArray) -> pa.Array:
    """The column as one array of a type that events have; texts beyond 2 GiB with offsets of 8 bytes."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    if kind not in _TYPES:
        raise LedgerError(f"column {name!r} is of type {column.type}, which no event has")
    if kind == pa.string() and column.nbytes >= 2**31:
        kind = pa.large_string()
    if kind != column.type:
        column = column.cast(kind)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _add(
    digests: Sequence[Any], bounds: list[int], name: str, array: pa.Array, order: Any | None, ranks: Any | None
) -> None:
    """Add a column to the digest of the rows between each two of the bounds.

    `order` are its rows in the order of seq, and `ranks` the places of its rows in that; None if they lie so.
    """
    nulls, ends, places = (array if array.null_count else None), bounds, None
    array = array.drop_null()
    if nulls is not None and ranks is not None:
        # Merged files are sorted by kind: a column of one kind's has its values in the order of seq already.
        places = ranks[np.flatnonzero(_bits(nulls, 0).view(np.bool_))]
        order = np.argsort(places, kind="stable") if np.any(places[1:] < places[:-1]) else None
        places = places if order is None else places[order]
        ends = np.searchsorted(places, bounds).tolist()
    elif nulls is not None:
        ends = [0, len(array)] if len(digests) == 1 else _counts(nulls)[bounds].tolist()
    if order is not None:
        array = array.take(pa.array(order))
    offsets = _offsets(array)
    values = _fixed(array) if offsets is None else np.diff(offsets).astype("<i4", copy=False)
    text = None if offsets is None or array.buffers()[2] is None else memoryview(array.buffers()[2])
    kind = pa.string() if offsets is not None else array.type
    head = f"{len(name)} {name} {kind} ".encode()
    for digest, (first_row, last_row), (first, last) in zip(
        digests, itertools.pairwise(bounds), itertools.pairwise(ends), strict=True
    ):
        if first == last:
            continue
        digest.update(head + (last - first).to_bytes(8, "little"))
        if nulls is not None and last - first < last_row - first_row:
            if places is None:
                digest.update(_mask(nulls, first_row, last_row))
            else:
                valid = np.zeros(last_row - first_row, np.uint8)
                valid[places[first:last] - first_row] = 1
                digest.update(np.packbits(valid, bitorder="little").data)
        digest.update(values[first:last].data)
        if text is not None and offsets is not None:
            digest.update(text[offsets[first] : offsets[last]])


def _fixed(array: pa.Array) -> Any:
    """The values of an array without nulls, of a type of fixed width, as they are hashed."""
    if pa.types.is_boolean(array.type):
        return _bits(array, 1)
    # An array without rows may have no buffer.
    return np.frombuffer(array.buffers()[1] or b"", _TYPES[array.type], len(array), 8 * array.offset)


def _counts(array: pa.Array) -> Any:
    """How many values there are before each row, and in all."""
    return np.concatenate(([0], np.cumsum(_bits(array, 0), dtype=np.int64)))


def _mask(array: pa.Array, first: int, last: int) -> bytes:
    """Which of the rows have a value: a bit each, the lowest first, zeros behind the last."""
    begin, end = array.offset + first, array.offset + last
    if begin % 8:
        return np.packbits(_bits(array.slice(first, last - first), 0), bitorder="little").tobytes()
    mask = bytearray(memoryview(array.buffers()[0])[begin // 8 : (end + 7) // 8])
    if used := end % 8:
        mask[-1] &= (1 << used) - 1
    return bytes(mask)


def _bits(array: pa.Array, buffer: int) -> Any:
    first, last = array.offset, array.offset + len(array)
    packed = np.frombuffer(array.buffers()[buffer], np.uint8)[first // 8 : (last + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + len(array)]


def _offsets(array: pa.Array) -> Any | None:
    """Where each text begins among the characters, and where the last one ends; None for what is no text."""
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return None
    dtype, width = ("<i4", 4) if pa.types.is_string(array.type) else ("<i8", 8)
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, width * array.offset)
