"""Export: the rows of views as files that other tools open, written whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rose.ledger import catalog, layout, verified
from rose.ledger.growth.store import Store
from rose.ledger.layout import LedgerError

_BATCH_ROWS = 100_000
_WRITERS: dict[str, Callable[[Path, pa.Schema], Any]] = {
    "parquet": lambda path, schema: pq.ParquetWriter(path, schema, compression="zstd"),
    "csv": pyarrow.csv.CSVWriter,
    "arrow": pa.ipc.new_file,
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The rows that are wanted; None is no limit."""

    since: datetime | None
    until: datetime | None
    run_id: str | None


@dataclass(frozen=True, slots=True)
class Exported:
    """One file of an export. `bytes` is its size."""

    view: str
    rows: int
    bytes: int
    file: str


def export(
    root: Path | str,
    to: str,
    *,
    views: Sequence[str] | None = None,
    format: str = "parquet",
    since: datetime | None = None,
    until: datetime | None = None,
    run_id: str | None = None,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Exported]:
    """Write each of `views` (all public ones if None) to `<to>/<view>.<format>`, a folder or a URL fsspec opens.

    Rows with `event_time` (or the day) in [`since`, `until`), taken for UTC if they name no zone, and of `run_id` if
    given. Times are UTC; what the views and columns mean goes along as
    metadata, but for CSV. Every file is made beside its place first, so a failure leaves what was there. Events that
    arrive meanwhile may show in a later view and not in an earlier one.

    Raises LedgerError for a view there is not, for a file there is already (unless `overwrite`), and if the ledger
    cannot be read or the place cannot be written.
    """
    root = layout.check(root)
    if format not in _WRITERS:
        raise LedgerError(f"format must be one of {', '.join(_WRITERS)}, got {format!r}")
    chosen = list(dict.fromkeys(catalog.VIEWS if views is None else views))
    if unknown := [view for view in chosen if view not in catalog.VIEWS]:
        raise LedgerError(f"{unknown[0]!r} is not a view; the views are {', '.join(catalog.VIEWS)}")
    store = Store(to, storage_options)
    names = {view: f"{view}.{format}" for view in chosen}
    if existing := [name for name in names.values() if not overwrite and store.exists(name)]:
        raise LedgerError(f"{store.url(existing[0])} exists; name another place, or use --overwrite")
    folder = store.local_folder()
    done = []
    verification = verified.text(root)
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        # Beside its place, a rename is all that is left to do.
        with (
            tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as temporary,
            catalog.connect(root) as connection,
        ):
            for number, (view, name) in enumerate(names.items()):
                progress(number, len(names))
                path = Path(temporary) / name
                rows = _write(connection, view, format, path, _Wanted(since, until, run_id), verification)
                done.append(Exported(view, rows, path.stat().st_size, store.url(name)))
            for name in names.values():
                store.upload(Path(temporary) / name, name)
            progress(len(names), len(names))
    except (duckdb.Error, OSError) as error:
        raise LedgerError(f"cannot export {root} to {to}: {error}") from error
    return done


def _utc(time: datetime | None) -> datetime | None:
    """As the views have it: UTC, without a zone."""
    return time if time is None or time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)


def _write(
    connection: duckdb.DuckDBPyConnection, view: str, format: str, path: Path, wanted: _Wanted, verification: str
) -> int:
    """Write the rows of one view; returns how many."""
    source = connection.view(view)
    # A view of days has no time of its own; a day belongs to the period in which it begins.
    time = "event_time" if "event_time" in source.columns else "day"
    limits = {f"{time} >= ?": _utc(wanted.since), f"{time} < ?": _utc(wanted.until), "run_id = ?": wanted.run_id}
    given = {condition: value for condition, value in limits.items() if value is not None}
    select = f"SELECT * FROM {view} WHERE {' AND '.join(given) or 'true'}"
    schema = _described(source.limit(0).to_arrow_table().schema, view, verification)
    rows = 0
    with _WRITERS[format](path, schema) as file:
        for batch in connection.sql(select, params=list(given.values())).to_arrow_reader(_BATCH_ROWS):
            file.write_batch(batch.cast(schema))
            rows += batch.num_rows
    return rows


def _described(schema: pa.Schema, view: str, verification: str) -> pa.Schema:
    """The schema with its times marked as UTC, and with what the view and each column mean and what was verified."""
    about, columns = catalog.comments(view)
    columns = {**catalog.comments("event")[1], **columns}
    fields = []
    for field in schema:
        kind = pa.timestamp(field.type.unit, "UTC") if pa.types.is_timestamp(field.type) else field.type
        comment = columns.get(field.name)
        fields.append(pa.field(field.name, kind, metadata={"comment": comment} if comment else None))
    return pa.schema(fields, metadata={"comment": about, "rose.verified": verification})
