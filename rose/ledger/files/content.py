"""A digest of events, independent of Parquet, and checks of a Parquet file's footer.

A digest is the SHA-256 of a tag, the number of rows, and the columns that have values, sorted by name. A column is
hashed in this order: name, type, number of values, a bit for each row (only if a row has no value), and the values in
the order of seq. A number takes 8 bytes (little endian), and a boolean 1 byte. A column of texts takes the lengths of
all texts (4 bytes each), followed by the UTF-8 bytes of all texts."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rose.ledger.files.layout import LedgerError

_ROWS_TAG = b"rose rows 1\n"
#: The types of events, by Arrow's id (ten times as fast as the type): the name, and NumPy's type if of fixed width.
_TYPES = {
    pa.int64().id: ("int64", "<i8"),
    pa.float64().id: ("double", "<f8"),
    pa.bool_().id: ("bool", "?"),
    pa.string().id: ("string", ""),
}
_TEXTS = (pa.string().id, pa.large_string().id)


def rows_sha256(table: pa.Table) -> str:
    """Return the digest of the rows. Raises LedgerError for an unknown type, or a row without seq."""
    return _digests(table.column_names, table.column, [])[0]


def ranges_sha256(content: bytes, first_seqs: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return each range's digest, and Parquet structures that were not checked. `first_seqs`: a range's first seq."""
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    places = _places(file.metadata)
    unchecked: list[str] = []

    def read(name: str) -> pa.ChunkedArray:
        # `segments.read_rows` explains why not by threads.
        column = file.read([name], use_threads=False).column(0)
        if name not in places:
            raise LedgerError(f"column {name!r} is of type {column.type}, which no event has")
        unchecked.extend(_check_footer(file.metadata, places[name], column))
        return column

    # One column at a time: a million rows with all columns take gigabytes.
    return _digests(file.schema_arrow.names, read, first_seqs[1:]), list(dict.fromkeys(unchecked))


def _digests(names: Sequence[str], read: Callable[[str], pa.ChunkedArray], cuts: Sequence[int]) -> list[str]:
    if "seq" not in names or len(set(names)) < len(names):
        raise LedgerError("a column 'seq' is missing, or a column appears twice")
    seq = _plain("seq", read("seq"))
    if seq.null_count:
        raise LedgerError("a row has no seq")
    ranges = _Ranges(_fixed(seq), cuts)
    # Without rows no column has a value, and the first segment of an epoch has hundreds of columns.
    for name in sorted(names) if len(seq) else ():
        column = read(name)
        if column.null_count < len(column):
            ranges.add(name, _plain(name, column))
    return [digest.hexdigest() for digest in ranges.digests]


class _Joined:
    """A SHA-256 computed in one call, because each update of hashlib would release Python's global lock (GIL)."""

    def __init__(self, content: bytes) -> None:
        self._pieces: list[Any] = [content]
        self.update = self._pieces.append

    def hexdigest(self) -> str:
        return hashlib.sha256(b"".join(self._pieces)).hexdigest()


@dataclass(frozen=True, slots=True)
class _Filled:
    rows: Any  # In the order of seq; None for all rows, as stored.
    in_place: bool
    bounds: list[int]  # Where each range begins in `rows`, and where the last ends.
    bits: list[Any]  # By range: a bit for each row; None where all have a value.


class _Ranges:
    def __init__(self, seqs: Any, cuts: Sequence[int]) -> None:
        self._order = None  # The rows in the order of seq; None if stored in that order.
        if np.any(seqs[1:] < seqs[:-1]):
            self._order = np.argsort(seqs, kind="stable")
            seqs = seqs[self._order]
        self._bounds = [0, *np.searchsorted(seqs, cuts).tolist(), len(seqs)] if cuts else [0, len(seqs)]
        counts = [last - first for first, last in itertools.pairwise(self._bounds)]
        digest = _Joined if len(counts) == 1 else hashlib.sha256
        self.digests = [digest(_ROWS_TAG + count.to_bytes(8, "little")) for count in counts]
        self._all = _Filled(self._order, self._order is None, self._bounds, [None] * len(counts))
        #: By the bits of rows with a value, which columns of one kind share.
        self._filled: dict[tuple[bytes, int], _Filled] = {}

    def add(self, name: str, array: pa.Array) -> None:
        filled = self._filled_in(array) if array.null_count else self._all
        kind, values, text, offsets = _values(array, filled)
        head = f"{len(name)} {name} {kind} ".encode()
        ends = itertools.pairwise(filled.bounds)
        for digest, bits, (first, last) in zip(self.digests, filled.bits, ends, strict=True):
            if first == last:
                continue
            digest.update(head + (last - first).to_bytes(8, "little"))
            if bits is not None:
                digest.update(bits)
            digest.update(values[first:last].data)
            if text is not None:
                digest.update(text[offsets[first] : offsets[last]])

    def _filled_in(self, array: pa.Array) -> _Filled:
        packed, skipped = _packed(array, 0)
        key = packed.tobytes(), skipped
        if key not in self._filled:
            self._filled[key] = self._filled_by(_bits(array, 0))
        return self._filled[key]

    def _filled_by(self, bits: Any) -> _Filled:
        order = self._order
        bits = bits if order is None else bits[order]
        places = np.flatnonzero(bits.view(np.bool_))
        rows = places if order is None else order[places]
        in_place = order is None or not np.any(rows[1:] < rows[:-1])
        bounds = np.searchsorted(places, self._bounds).tolist()
        ranges = zip(itertools.pairwise(self._bounds), itertools.pairwise(bounds), strict=True)
        packed = [
            np.packbits(bits[first_row:last_row], bitorder="little").data
            if last - first < last_row - first_row
            else None
            for (first_row, last_row), (first, last) in ranges
        ]
        return _Filled(rows, in_place, bounds, packed)


def _values(array: pa.Array, filled: _Filled) -> tuple[str, Any, memoryview | None, Any]:
    """Return (type, values, None, ()) for the rows that have a value. For texts: (type, lengths, bytes, offsets)."""
    rows = filled.rows
    if array.type.id not in _TEXTS:
        values = _fixed(array)
        return _TYPES[array.type.id][0], values if rows is None else values[rows], None, ()
    offsets = _offsets(array)
    lengths = np.diff(offsets)
    if rows is not None:
        picked = lengths[rows]
        if filled.in_place and lengths.sum() == picked.sum():
            lengths, offsets = picked, np.append(offsets[rows], offsets[-1])
        else:
            array = array.take(pa.array(rows))
            offsets = _offsets(array)
            lengths = np.diff(offsets)
    data = array.buffers()[2]
    return "string", lengths.astype("<i4", copy=False), memoryview(b"" if data is None else data), offsets


def _plain(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, in the type that events have for it. A column of texts with 2 GiB or more becomes
    a `large_string`, whose offsets have 8 bytes. Raises LedgerError for a type that no event has."""
    kind = column.type
    if kind.id not in _TYPES:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            kind = pa.string()
        if kind.id not in _TYPES:
            raise LedgerError(f"column {name!r} is of type {column.type}, which no event has")
    if kind.id in _TEXTS and column.nbytes >= 2**31:
        kind = pa.large_string()
    if kind != column.type:
        column = column.cast(kind)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fixed(array: pa.Array) -> Any:
    if array.type.id == pa.bool_().id:
        return _bits(array, 1)
    return np.frombuffer(array.buffers()[1] or b"", _TYPES[array.type.id][1], len(array), 8 * array.offset)


def _bits(array: pa.Array, buffer: int) -> Any:
    packed, skipped = _packed(array, buffer)
    return np.unpackbits(packed, bitorder="little")[skipped : skipped + len(array)]


def _packed(array: pa.Array, buffer: int) -> tuple[Any, int]:
    first, last = array.offset, array.offset + len(array)
    return np.frombuffer(array.buffers()[buffer], np.uint8)[first // 8 : (last + 7) // 8], first % 8


def _offsets(array: pa.Array) -> Any:
    dtype, width = ("<i4", 4) if array.type.id == pa.string().id else ("<i8", 8)
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, width * array.offset)


_TEXT_BYTES = 255  # Longer bounds may be truncated or missing.
#: Arrow's type for comparing a footer's values, by the column's type. Other types are not checked.
_SAME = (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.large_string())
_COMPARED = {kind: kind for kind in _SAME} | {pa.date32(): pa.int32()}


def _places(metadata: pq.FileMetaData) -> dict[str, int]:
    return {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}


def _check_footer(metadata: pq.FileMetaData, place: int, column: pa.ChunkedArray) -> list[str]:
    name, row = metadata.schema.column(place).path, 0
    unchecked: list[str] = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        values = column.slice(row, group.num_rows)
        row += group.num_rows
        unchecked += (f"the {structure} of column {name!r}" for structure in _unchecked(group, place, values))
    if row != len(column) or row != metadata.num_rows:
        raise LedgerError(f"the footer counts {metadata.num_rows} rows, but column {name!r} has {len(column)}")
    return list(dict.fromkeys(unchecked))


def check_footers(content: bytes) -> list[str]:
    """Check a Parquet file's footer, and return what could not be checked. Raises LedgerError, or an error of Arrow."""
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    by_name = _places(file.metadata)
    unchecked = []
    for name in file.schema_arrow.names:
        if name not in by_name:
            unchecked.append(f"the nested column {name!r}")
            continue
        try:
            column = file.read([name], use_threads=False).column(0)
        except pa.ArrowNotImplementedError:
            unchecked.append(f"the column {name!r}")
            continue
        unchecked += _check_footer(file.metadata, by_name[name], column)
    return unchecked


def _unchecked(group: pq.RowGroupMetaData, place: int, values: pa.ChunkedArray) -> Iterator[str]:
    chunk = group.column(place)
    if chunk.has_column_index or chunk.has_offset_index:
        yield "page index"
    if chunk.bloom_filter_offset is not None:
        # This version writes none: a filter that lacks a value hides its rows from readers.
        yield "Bloom filter"
    statistics = None
    with suppress(pa.ArrowNotImplementedError):
        statistics = chunk.statistics
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if (agree := _agree(statistics, values)) is None:
        yield "statistics"
    elif not agree:
        name = chunk.path_in_schema
        raise LedgerError(f"the statistics of column {name!r} do not match its values: they were changed")


def _agree(statistics: Any, values: pa.ChunkedArray) -> bool | None:
    if not len(values):
        return True
    if statistics is None or not statistics.has_null_count:
        return None
    if statistics.null_count != values.null_count:
        return False
    if values.null_count == len(values):
        return not statistics.has_min_max
    if (compared := _COMPARED.get(values.type)) is None:
        return None
    least, most = pc.min_max(values.cast(compared)).as_py().values()
    if isinstance(least, str):
        least, most = least.encode(), most.encode()
        if not statistics.has_min_max:
            return True if max(len(least), len(most)) > _TEXT_BYTES else None
        return _text_bounds(statistics.min_raw, statistics.max_raw, least, most)
    if not statistics.has_min_max:
        return True if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py() else None
    return bool(statistics.min_raw == least and statistics.max_raw == most)


def _text_bounds(low: bytes, high: bytes, least: bytes, most: bytes) -> bool | None:
    """Return whether the bounds `low` and `high` in a footer fit texts from `least` to `most`. True: the bounds are
    `least` and `most`, perhaps shortened. None: the bounds are wider. False: a text lies outside of the bounds."""
    if not low <= least or (high < most and not most.startswith(high)):
        return False
    exact_low = low == least or (len(least) > _TEXT_BYTES and bool(low) and least.startswith(low))
    exact_high = high == most or (len(most) > _TEXT_BYTES and bool(high) and high >= most[: len(high)])
    return True if exact_low and exact_high else None
