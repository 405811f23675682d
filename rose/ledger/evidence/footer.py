"""What a Parquet file's footer says of its rows, held against them: readers leave out the rows that it speaks against.

The digest of rows says nothing of the footer, and whoever may write the file may change it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rose.ledger.evidence import bloom
from rose.ledger.layout import LedgerError

#: Bounds of longer texts may be cut off, or left out.
_TEXT_BYTES = 255


def places(metadata: pq.FileMetaData) -> dict[str, int]:
    """The place of each column in the footer by its name."""
    return {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}


def check(metadata: pq.FileMetaData, place: int, column: pa.ChunkedArray, *, content: bytes | None = None) -> None:
    """Raise LedgerError if the footer does not say of the column what its values are.

    With `content`, the bytes of the file, it may have Bloom filters, which must let each value be found. Raises what
    Arrow raises for statistics that it cannot read.
    """
    name, row = metadata.schema.column(place).path, 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        values = column.slice(row, group.num_rows)
        row += group.num_rows
        chunk = group.column(place)
        if chunk.has_column_index or chunk.has_offset_index:
            raise LedgerError(f"column {name!r} has an index of pages, which no writer makes")
        if chunk.bloom_filter_offset is not None:
            if content is None:
                raise LedgerError(f"column {name!r} has a Bloom filter, which no writer makes")
            if not bloom.has_all(content, chunk.bloom_filter_offset, _plain(values), chunk.physical_type):
                raise LedgerError(f"the Bloom filter of column {name!r} hides some of its values: it was changed")
        if not _agrees(chunk.statistics, values):
            raise LedgerError(f"the statistics of column {name!r} are not those of its values: they were changed")
    if row != len(column) or row != metadata.num_rows:
        raise LedgerError(f"the footer counts {metadata.num_rows} rows, and column {name!r} has {len(column)}")


def check_file(content: bytes) -> None:
    """Raise LedgerError if the footer of a Parquet file, of flat columns, does not say of its rows what they are.

    It may have Bloom filters. Raises what Arrow raises for a file that it cannot read.
    """
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    for name, place in places(file.metadata).items():
        # In this thread: see segments.read_rows.
        check(file.metadata, place, file.read([name], use_threads=False).column(0), content=content)


def _agrees(statistics: Any, values: pa.ChunkedArray) -> bool:
    if statistics is None or not statistics.has_null_count or statistics.null_count != values.null_count:
        # A row group without rows may lack them.
        return len(values) == 0
    values = _plain(values)
    if values.null_count == len(values):
        return not statistics.has_min_max
    least, most = pc.min_max(values).as_py().values()
    if isinstance(least, str):
        least, most = least.encode(), most.encode()
    if statistics.has_min_max:
        return _is_least(statistics.min_raw, least) and _is_most(statistics.max_raw, most)
    if isinstance(least, bytes):
        return max(len(least), len(most)) > _TEXT_BYTES
    return pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """As a footer has them: texts without a dictionary, days counted."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _is_least(bound: Any, least: Any) -> bool:
    cut = isinstance(least, bytes) and len(least) > _TEXT_BYTES
    return bool(bound == least or (cut and bound and least.startswith(bound)))


def _is_most(bound: Any, most: Any) -> bool:
    cut = isinstance(most, bytes) and len(most) > _TEXT_BYTES
    return bool(bound == most or (cut and bound >= most[: len(bound)]))
