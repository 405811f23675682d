"""What a ledger's files say of it by themselves: how far each writer is, and what the folder takes. No query runs."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rose.ledger import layout
from rose.ledger.layout import LedgerError


@dataclass(frozen=True, slots=True)
class WriterState:
    """How far a writer is. `newest_us` is when its newest event happened, UTC microseconds; None if that is unknown."""

    writer: str
    events: int
    newest_us: int | None


def writer_states(root: Path | str) -> list[WriterState]:
    """All writers of the ledger at `root`, by name. Raises LedgerError if it is none or damaged."""
    root = layout.check(root)
    return [_state(root, writer) for writer in layout.writers(root)]


def folder_bytes(root: Path | str) -> dict[str, int]:
    """Bytes of each folder of the ledger at `root`, by its name, and of the files beside them as `.`."""
    root = layout.check(root)
    sizes = {".": 0}
    for child in sorted(root.iterdir()):
        if child.is_dir():
            sizes[child.name] = sum(_size(path) for path in child.rglob("*"))
        else:
            sizes["."] += _size(child)
    return sizes


def _state(root: Path, writer: str) -> WriterState:
    """Read from the last file that has a row. A compaction may remove it at this moment: then from what it made."""
    try:
        for part in reversed(layout.chain(root, writer)):
            if part.state == "archived":
                return WriterState(writer, json.loads((root / part.manifest).read_bytes())["last_seq"] + 1, None)
            for path in sorted(root.glob(part.pattern), reverse=True):
                groups = _metadata(path)
                if groups.num_rows:
                    return WriterState(writer, _most(groups, "seq") + 1, _most(groups, "at_us"))
        return WriterState(writer, 0, None)
    except FileNotFoundError:
        return _state(root, writer)


def _metadata(path: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(path)
    except pa.ArrowException as error:
        raise LedgerError(f"{path} is damaged: {error}. Run `rose ledger verify`") from error


def _most(groups: pq.FileMetaData, column: str) -> int:
    """The greatest value of a column by the statistics of a file, which every file of a ledger has."""
    position = next(n for n in range(groups.num_columns) if groups.schema.column(n).name == column)
    return max(int(groups.row_group(n).column(position).statistics.max) for n in range(groups.num_row_groups))


def _size(path: Path) -> int:
    """Bytes of a file; 0 for a folder, and for a file that is gone by now."""
    with suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else 0
    return 0
