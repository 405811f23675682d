"""The schema file: every column of the ledger and no row, for readers of the files themselves. No view reads it."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rose.ledger import layout, rows


def write(root: Path) -> None:
    """Make sure the file that has every column stands, with the columns of this version."""
    path = root / layout.SCHEMA_FILE
    if fault(path) is not None or _lacks_columns(path):
        buffer = io.BytesIO()
        pq.write_table(rows.schema().empty_table(), buffer, store_schema=False)
        layout.write_file(path, buffer.getvalue())


def fault(path: Path) -> str | None:
    """What is wrong with the file that has every column and no row; None if nothing.

    A newer version may know more columns, an older one fewer: the next writer or reader adds those.
    """
    try:
        metadata = pq.read_metadata(path)
        types = {field.name: field.type for field in metadata.schema.to_arrow_schema()}
    except FileNotFoundError:
        return "it is missing"
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return f"it cannot be read: {error}"
    if metadata.num_rows:
        return f"it has {metadata.num_rows} rows and may have none: other readers would take them for events"
    if other := [field.name for field in rows.schema() if types.get(field.name, field.type) != field.type]:
        return f"column {other[0]!r} is of another type"
    return None


def _lacks_columns(path: Path) -> bool:
    return not set(rows.schema().names) <= set(pq.read_schema(path).names)
