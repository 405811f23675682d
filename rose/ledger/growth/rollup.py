"""A roll-up makes daily sums of closed epochs. Daily views add the newer events."""

import dataclasses
import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from rose.events import LedgerAction
from rose.ledger.checks.expected import ROLL_UP_WRITER, ROLLED_UP_ACTION, UPKEEP_WRITERS
from rose.ledger.files import catalog, database, layout, rolled, segments, sources
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.rolled import CLIENT_ID, FOLDER, ID_FOLDER, ROLLUPS, Coverage
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter

_MERGED_IDS_MAX = 8_000_000  # Maximum of ids in a merged file: 5 s of work, and a gigabyte of memory to sort them.
#: Their events prove manifests, roll-ups and closes, so they never leave the ledger.
KEPT_WRITERS = (*UPKEEP_WRITERS, layout.CLOSING_WRITER)
_ID_ORDER = "kind, run_id, event_id"  # A reader of one kind and run, or of the newest ids, then reads few row groups.


@dataclass(frozen=True, slots=True)
class RollUp:
    generation: int
    events: int
    rows: int
    bytes: int


class _Written(NamedTuple):
    rows: int
    bytes: int
    sha256: str


def roll_up(ledger: Ledger, grace_s: float = 60.0) -> RollUp:
    """Sum up every epoch that was closed since the last roll-up. Raises LedgerError, and then changes nothing."""
    with (
        layout.refusals(f"cannot roll up {ledger.folder}"),
        LedgerWriter.open(ledger.folder, ROLL_UP_WRITER, layout.UPKEEP_RUN_ID) as log,
    ):
        _remove_old(ledger, grace_s)
        before = rolled.newest(ledger.folder)
        if before is None or not before.complete:
            if gone := [f"{part.stem}.parquet" for part in layout.archived_parts(ledger.folder)]:
                raise LedgerError(
                    f"the sums must be made again from all events, but {gone[0]} was archived: restore it with "
                    "`rose ledger restore`, roll up, and archive again"
                )
            before = None
        ends = {}
        for writer in layout.writers(ledger.folder):
            newest = max(layout.epochs(ledger.folder, writer), default=-1)
            closed = [part for part in layout.chain(ledger.folder, writer) if part.last < newest]
            if closed:
                ends[writer] = (closed[-1].last, segments.end_seq(ledger.folder, closed[-1]))
        old = {} if before is None else before.writers
        events = sum(seq - old.get(writer, (-1, 0))[1] for writer, (_, seq) in ends.items())
        if before is not None and events == 0:
            return RollUp(before.generation, 0, 0, 0)
        done = _write(ledger, before, ends, events, log)
        catalog.refresh(ledger.folder)
        return done


def _write(
    ledger: Ledger, before: Coverage | None, ends: dict[str, tuple[int, int]], events: int, log: LedgerWriter
) -> RollUp:
    generation = max(rolled.generations(ledger.folder), default=-1) + 1
    home = ledger.folder / FOLDER
    home.mkdir(exist_ok=True)
    temporary = home / f".{generation:06d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with ledger.connect() as connection, database.one_thread(connection):
            catalog.limit(connection, ledger.folder, (before, ends), "unrolled_retry")
            sums = {name: _copy(connection, f"FROM {name}", "ALL", temporary / f"{name}.parquet") for name in ROLLUPS}
            old_ids = {} if before is None else before.ids
            ids, ids_written = _write_ids(ledger, old_ids, generation, temporary, connection)
    except (duckdb.Error, pa.ArrowException) as error:
        raise LedgerError(f"cannot roll up {ledger.folder}: {layout.unreadable(error)}") from error
    files = [*sums.values(), ids_written]
    done = RollUp(generation, events, sum(file.rows for file in files), sum(file.bytes for file in files))
    content = {
        "generation": generation,
        "form": rolled.FORM,
        "writers": {**({} if before is None else before.writers), **ends},
        "files": {name: copied.sha256 for name, copied in sums.items()},
        "ids": {Path(path).stem: sha256 for path, sha256 in ids.items()},
    }
    coverage = json.dumps(content, indent=1).encode()
    layout.write_file(temporary / "coverage.json", coverage)
    detail = {**dataclasses.asdict(done), "coverage_sha256": hashlib.sha256(coverage).hexdigest()}
    log.record(LedgerAction(action=ROLLED_UP_ACTION, detail_json=json.dumps(detail)), durable=True)
    temporary.rename(home / f"{generation:06d}")
    layout.sync_folder(home)
    return done


def _write_ids(
    ledger: Ledger, known: dict[str, str], generation: int, temporary: Path, connection: duckdb.DuckDBPyConnection
) -> tuple[dict[str, str], _Written]:
    """Write a file with the new event ids, and merge some of the newest id files into it. `known` has the SHA-256
    of each id file, by path. Return the same mapping for the id files after the merge, and facts about the new file."""
    layout.make_folder(ledger.folder / ID_FOLDER)
    path = temporary / f"{CLIENT_ID}.parquet"
    written = _copy(connection, sources.new_client_ids(), _ID_ORDER, path)
    old = list(known)
    sizes = (pq.read_metadata(ledger.folder / name).num_rows for name in reversed(old))
    first = len(old) - merged_files(sizes, written.rows)
    if merged := old[first:]:
        for name in merged:
            # A merge would hide that it was changed.
            if hashlib.sha256((ledger.folder / name).read_bytes()).hexdigest() != known[name]:
                raise LedgerError(
                    f"cannot roll up {ledger.folder}: {name} was changed after it was written. Restore it from a "
                    "copy, or restore all archived events with `rose ledger restore`, and remove the "
                    f"folder {FOLDER}: the next roll-up makes it again from the events"
                )
        select = sources.parquet(ledger.folder, [*merged, path.relative_to(ledger.folder).as_posix()])
        path = temporary / "merged.parquet"
        written = _copy(connection, select, _ID_ORDER, path)
        (temporary / f"{CLIENT_ID}.parquet").unlink()
    ids = {name: known[name] for name in old[:first]}
    if not written.rows:
        path.unlink()
        return ids, _Written(0, 0, "")
    target = rolled.id_file(generation)
    layout.replace_file(path, ledger.folder / target)
    return {**ids, target: written.sha256}, written


def merged_files(sizes: Iterable[int], new: int) -> int:
    """Return how many of the newest id files to merge with a new file of `new` ids. `sizes` has the ids in each file,
    newest file first. The number of files then grows only with the logarithm of the number of ids."""
    count, merged = 0, new
    for size in sizes if new else ():
        if size > 2 * merged or size + merged > _MERGED_IDS_MAX:
            break
        count, merged = count + 1, merged + size
    return count


def _copy(connection: duckdb.DuckDBPyConnection, select: str, order: str, path: Path) -> _Written:
    ordered = f"SELECT * FROM ({select}) ORDER BY {order}"
    # No Bloom filter: a forged one would hide rows from readers, and no query here uses one.
    options = "FORMAT parquet, COMPRESSION zstd, WRITE_BLOOM_FILTER false"
    (rows,) = connection.execute(f"COPY ({ordered}) TO {catalog.quoted(str(path))} ({options})").fetchall()[0]
    layout.sync_file(path)
    content = path.read_bytes()
    return _Written(rows, len(content), hashlib.sha256(content).hexdigest())


def _remove_old(ledger: Ledger, grace_s: float) -> None:
    for leftover in (ledger.folder / FOLDER).glob(".*.gone"):
        shutil.rmtree(leftover)
    for old, newer in itertools.pairwise(rolled.generations(ledger.folder)):
        if time.time() - (ledger.folder / FOLDER / f"{newer:06d}").stat().st_mtime >= grace_s:
            # As a whole, so that a kill leaves no generation that lacks files.
            folder = ledger.folder / FOLDER / f"{old:06d}"
            shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.gone")))
    standing = [rolled.read(ledger.folder, number) for number in rolled.generations(ledger.folder)]
    named = {path for coverage in standing if coverage is not None for path in coverage.ids}
    for name in layout.names(ledger.folder / ID_FOLDER):
        own = rolled.is_id_file(name) or layout.LEFTOVER_NAME.fullmatch(name)
        # A generation that lost its coverage may get it back.
        if own and f"{ID_FOLDER}/{name}" not in named and None not in standing:
            (ledger.folder / ID_FOLDER / name).unlink()
