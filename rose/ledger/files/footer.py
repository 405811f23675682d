"""Checks a Parquet file's footer against its rows, since a forged footer would hide rows from readers."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rose.ledger.files.layout import LedgerError

_TEXT_BYTES = 255  # Longer bounds may be truncated or missing.
#: Arrow's type for comparing a footer's values, by the column's type. Other types are not checked.
_COMPARED = {
    pa.bool_(): pa.bool_(),
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.date32(): pa.int32(),
    pa.float32(): pa.float32(),
    pa.float64(): pa.float64(),
    pa.string(): pa.string(),
    pa.large_string(): pa.large_string(),
}


def places(metadata: pq.FileMetaData) -> dict[str, int]:
    return {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}


def check(metadata: pq.FileMetaData, place: int, column: pa.ChunkedArray) -> list[str]:
    """Return the unchecked structures in a column's footer. Raises LedgerError if the footer is wrong."""
    name, row = metadata.schema.column(place).path, 0
    unchecked: list[str] = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        values = column.slice(row, group.num_rows)
        row += group.num_rows
        unchecked += (f"the {structure} of column {name!r}" for structure in _unchecked(group, place, values))
    if row != len(column) or row != metadata.num_rows:
        raise LedgerError(f"the footer counts {metadata.num_rows} rows, and column {name!r} has {len(column)}")
    return list(dict.fromkeys(unchecked))


def check_file(content: bytes) -> list[str]:
    """Return a Parquet file's unchecked structures. Raises LedgerError if one is wrong, or an error of Arrow."""
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    by_name = places(file.metadata)
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
        unchecked += check(file.metadata, by_name[name], column)
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
    """Return whether these may be the bounds of texts from `least` to `most`; None if they are wider than expected."""
    if not low <= least or (high < most and not most.startswith(high)):
        return False
    exact_low = low == least or (len(least) > _TEXT_BYTES and bool(low) and least.startswith(low))
    exact_high = high == most or (len(most) > _TEXT_BYTES and bool(high) and high >= most[: len(high)])
    return True if exact_low and exact_high else None
