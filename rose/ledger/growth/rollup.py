"""Rolling up: daily sums of closed epochs, so that a year of a fleet is read in a second.

A daily view is the sums that stand plus the events not yet summed. A roll-up writes what such a view gives for the
closed epochs as the next generation, so it can be nothing else than what a reader would have seen without it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb

import sql
from rose.events import Ledger
from rose.ledger import catalog, layout, segments
from rose.ledger.growth import rolled
from rose.ledger.growth.left_out import left_out
from rose.ledger.growth.rolled import CLIENT_ID, FOLDER, ROLLUPS, Coverage
from rose.ledger.layout import LedgerError
from rose.ledger.verify import ROLL_UP_WRITER, ROLLED_UP_ACTION
from rose.ledger.writer import LedgerWriter


@dataclass(frozen=True, slots=True)
class RollUp:
    """What a call of `roll_up` did. `events` are newly summed; 0 means that nothing was closed since."""

    generation: int
    events: int
    rows: int
    bytes: int
    #: Epochs with events that are still open, so that no sum has them yet, and their events.
    open_epochs: int
    open_events: int


def covered(root: Path | str) -> dict[str, int]:
    """The first seq of each writer that is not in the roll-ups; empty before the first."""
    coverage = rolled.newest(layout.check(root))
    return {} if coverage is None else {writer: seq for writer, (_, seq) in coverage.writers.items()}


def roll_up(root: Path | str, grace_s: float = 60.0) -> RollUp:
    """Sum up every epoch that was closed since the last roll-up; older generations go `grace_s` seconds later.

    Safe while writers write, readers read and compaction runs. Raises LedgerError if another roll-up is running, if a
    segment is damaged, or if the disk refuses; then the last generation stands as it was.
    """
    root = layout.check(root)
    try:
        # Its name also keeps a second roll-up from running.
        with LedgerWriter.open(root, ROLL_UP_WRITER, layout.UPKEEP_RUN_ID) as log:
            _remove_old(root, grace_s)
            before = rolled.newest(root)
            if before is not None and not before.complete:
                _check_rebuild(root)
                before = None
            ends = _closed_ends(root)
            old = {} if before is None else before.writers
            left = left_out(root)
            events = sum(seq - old.get(writer, (-1, 0))[1] for writer, (_, seq) in ends.items())
            if before is not None and events == 0:
                return RollUp(before.generation, 0, 0, 0, left.open_epochs, left.open_events)
            generation, rows, size = _write(root, before, ends, events, log)
            catalog.refresh(root)
            return RollUp(generation, events, rows, size, left.open_epochs, left.open_events)
    except OSError as error:
        raise LedgerError(f"cannot roll up {root}: {error}") from error


def _check_rebuild(root: Path) -> None:
    """A generation of another version of ROSE is made again from the events, so all of these must be there."""
    for writer in layout.writers(root):
        if gone := [part.stem for part in layout.chain(root, writer) if part.state == "archived"]:
            raise LedgerError(
                f"the roll-ups of {root} are of another version of ROSE and must be made again from all events, but "
                f"{gone[0]}.parquet was archived: bring it back with `rose ledger restore`, roll up, and archive again"
            )


def _closed_ends(root: Path) -> dict[str, tuple[int, int]]:
    """Of each writer the last epoch that is closed and the seq after it."""
    ends = {}
    for writer in layout.writers(root):
        newest = max(layout.epochs(root, writer), default=-1)
        closed = [part for part in layout.chain(root, writer) if part.last < newest]
        if closed:
            ends[writer] = (closed[-1].last, segments.end_seq(root, closed[-1]))
    return ends


def _write(
    root: Path, before: Coverage | None, ends: dict[str, tuple[int, int]], events: int, log: LedgerWriter
) -> tuple[int, int, int]:
    """Write the next generation; returns its number, and the rows and bytes of its files."""
    generation = max(rolled.generations(root), default=-1) + 1
    home = root / FOLDER
    home.mkdir(exist_ok=True)
    temporary = home / f".{generation:06d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    files, count, size = {}, 0, 0
    try:
        with catalog.connect(root, until=(before, ends)) as connection:
            connection.execute("SET threads = 1")
            for name in (*ROLLUPS, CLIENT_ID):
                path = temporary / f"{name}.parquet"
                select = f"FROM {name}" if name != CLIENT_ID else sql.read(f"rollups/{name}.sql").strip().strip(";")
                ordered = f"SELECT * FROM ({select}) ORDER BY ALL"
                copied = connection.execute(f"COPY ({ordered}) TO {catalog.quoted(str(path))} (COMPRESSION zstd)")
                count += copied.fetchall()[0][0]
                content = path.read_bytes()
                files[name] = hashlib.sha256(content).hexdigest()
                size += len(content)
                layout.sync_file(path)
    except duckdb.Error as error:
        raise LedgerError(f"cannot roll up {root}: {error}. `rose ledger verify` names what is damaged") from error
    writers = {**({} if before is None else before.writers), **ends}
    coverage = json.dumps({"generation": generation, "writers": writers, "files": files}, indent=1).encode()
    layout.write_file(temporary / "coverage.json", coverage)
    detail = {
        "generation": generation,
        "events": events,
        "rows": count,
        "bytes": size,
        "coverage_sha256": hashlib.sha256(coverage).hexdigest(),
    }
    log.record(Ledger(action=ROLLED_UP_ACTION, detail_json=json.dumps(detail)), durable=True)
    temporary.rename(home / f"{generation:06d}")
    layout.sync_folder(home)
    return generation, count, size


def _remove_old(root: Path, grace_s: float) -> None:
    """Remove generations that were replaced at least `grace_s` seconds ago; queries that read them are over."""
    numbers = rolled.generations(root)
    for old, newer in itertools.pairwise(numbers):
        if time.time() - (root / FOLDER / f"{newer:06d}").stat().st_mtime >= grace_s:
            shutil.rmtree(root / FOLDER / f"{old:06d}")
