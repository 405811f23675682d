"""Compaction merges segments of closed epochs into one file. The file counts as soon as its manifest exists."""

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rose.events import LedgerAction
from rose.ledger.checks.expected import COMPACTED_ACTION, COMPACTION_WRITER
from rose.ledger.files import catalog, database, examine, layout, segments, sources, spool
from rose.ledger.files.layout import LedgerError, Part
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter

FANOUT = 16  # This many neighbouring compacted files are merged again, so that their number grows logarithmically.
EVENTS_MAX = 1_000_000  # A file with this many events is never merged again.


@dataclass(frozen=True, slots=True)
class Compaction:
    merged_segments: int
    files_written: int
    parts_removed: int


def compact(ledger: Ledger, grace_s: float = 60.0) -> Compaction:
    """Merge every writer's closed epochs, and remove merged parts after `grace_s` seconds. Raises LedgerError."""
    merged = written = removed = 0
    failure: LedgerError | None = None
    # Opening the writer refreshes the catalog, so that it does not read the parts to remove.
    with (
        layout.refusals(f"cannot compact {ledger.folder}"),
        LedgerWriter.open(ledger.folder, COMPACTION_WRITER, layout.UPKEEP_RUN_ID) as log,
        ledger.lock(layout.PARTS_LOCK),
    ):
        for writer in layout.writers(ledger.folder):
            try:
                _remove_leftovers(ledger, writer)
                removed += _remove_superseded(ledger, writer, grace_s) + remove_archived(ledger, writer, grace_s)
                events_of: dict[Part, int] = {}
                # The oldest batch is first. So after a stop, no part before the stop needs a merge. The next
                # compaction relies on this.
                while batches := plan(unsettled(_newest_first(ledger, writer, events_of))):
                    merged += _merge(ledger, batches[0], log)
                    written += 1
            except LedgerError as error:
                failure = failure or error
        if written:
            catalog.refresh(ledger.folder)
    if failure is not None:
        raise failure
    return Compaction(merged, written, removed)


def plan(parts: Sequence[tuple[Part, int]]) -> list[list[Part]]:
    """Return the groups of neighbouring closed parts to merge, oldest first. `parts` are pairs (part, events in it).
    Neighbouring compacted files are merged again once there are FANOUT of them, or once they have EVENTS_MAX events
    together. No group reaches across an archived part."""
    merges: list[list[Part]] = []
    for state, least in (("live", 1), ("compacted", FANOUT)):
        run: list[Part] = []
        total = 0
        for part, events in [*parts, (None, 0)]:
            joins = part is not None and part.state == state and (state == "live" or events < EVENTS_MAX // 2)
            # Before a large file they wait: one alone would be merged with itself again and again.
            full = joins and (total + events > EVENTS_MAX or (state == "live" and len(run) == FANOUT))
            if run and (part is None or not joins or full or part.first != run[-1].last + 1):
                if full or len(run) >= least:
                    merges.append(run)
                run, total = [], 0
            if part is not None and joins:
                run.append(part)
                total += events
    return sorted(merges)


def unsettled(newest_first: Iterable[tuple[Part, int]]) -> list[tuple[Part, int]]:
    """Return the parts that `plan` may still merge, oldest first. `newest_first` has pairs (part, events in it)."""
    parts: list[tuple[Part, int]] = []
    large = 0
    for part, events in newest_first:
        parts.append((part, events))
        large = large + 1 if part.state == "compacted" and events >= EVENTS_MAX // 2 else 0
        if large == FANOUT:
            break
    return parts[::-1]


def _newest_first(ledger: Ledger, writer: str, events_of: dict[Part, int]) -> Iterator[tuple[Part, int]]:
    newest = max(layout.epochs(ledger.folder, writer), default=-1)
    for part in reversed(layout.parts(ledger.folder, writer)):
        if part.last < newest:
            if part not in events_of:
                events_of[part] = _events(ledger, part)
            yield part, events_of[part]


def _merge(ledger: Ledger, batch: list[Part], log: LedgerWriter) -> int:
    merged = [entry for part in batch for entry in _entries(ledger, part)]
    target = Part(batch[0].writer, batch[0].first, batch[-1].last, "compacted")
    first_seq, last_seq = merged[0]["first_seq"], merged[-1]["last_seq"]
    path = ledger.folder / f"{target.stem}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = _write_rows(ledger, batch, path)
    times = pc.min_max(segments.read_rows(content, ["at_us"])["at_us"]).as_py()
    manifest = {
        "writer": target.writer,
        "first_epoch": target.first,
        "last_epoch": target.last,
        "first_seq": first_seq,
        "last_seq": last_seq,
        "at_us_min": times["min"],
        "at_us_max": times["max"],
        "sha256": hashlib.sha256(content).hexdigest(),
        "segments": merged,
    }
    manifest_content = json.dumps(manifest, indent=1).encode()
    if (fault := examine.rows(content, manifest_content).fault) is not None:
        path.unlink()
        raise LedgerError(f"{target.stem}.parquet: {fault}; nothing was replaced")
    detail = {name: value for name, value in manifest.items() if name != "segments"}
    detail |= {
        "file": f"{target.stem}.parquet",
        "segments": len(merged),
        "manifest_sha256": hashlib.sha256(manifest_content).hexdigest(),
    }
    log.record(LedgerAction(action=COMPACTED_ACTION, detail_json=json.dumps(detail)), durable=True)
    layout.write_file(ledger.folder / target.manifest, manifest_content)
    return len(merged)


def _write_rows(ledger: Ledger, batch: list[Part], path: Path) -> bytes:
    """Write all rows of `batch`, and return the file's bytes. Rows are sorted by kind, for queries on one kind."""
    temporary = path.with_name(f".{path.name}.tmp")
    rows = sources.parquet(ledger.folder, [part.pattern for part in batch], sources.BY_NAME) + " ORDER BY kind, seq"
    try:
        with database.empty() as connection, database.one_thread(connection):
            # No Bloom filter: a forged one would hide rows from readers, and no query here uses one.
            options = "FORMAT parquet, COMPRESSION zstd, WRITE_BLOOM_FILTER false"
            connection.execute(f"COPY ({rows}) TO {catalog.quoted(str(temporary))} ({options})")
        layout.replace_file(temporary, path)
    except duckdb.Error as error:
        raise LedgerError(f"cannot merge {batch[0].pattern} to {batch[-1].pattern}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path.read_bytes()


def _entries(ledger: Ledger, part: Part) -> Iterator[dict[str, Any]]:
    if part.state == "compacted":
        _, manifest, _ = read_compacted(ledger, part)
        yield from manifest["segments"]
        return
    folder = ledger.folder / part.folder
    for name in segments.segment_names(folder):
        content = (folder / name).read_bytes()
        sha256 = segments.sha256_in(name)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise LedgerError(f"segment {folder / name} was changed after it was written. Run `rose ledger verify`")
        yield segments.link(segments.read_header(content), sha256).entry()


def _events(ledger: Ledger, part: Part) -> int:
    if part.state == "compacted":
        # Not the manifest, which names each segment: a year's manifests have gigabytes.
        with suppress(pa.ArrowException, OSError):
            return int(pq.read_metadata(ledger.folder / part.pattern).num_rows)
        manifest, _ = layout.read_manifest(ledger.folder, part)
        return int(manifest["last_seq"] - manifest["first_seq"]) + 1
    folder = ledger.folder / part.folder
    names = segments.segment_names(folder)
    first, last = (segments.read_header((folder / name).read_bytes()) for name in (names[0], names[-1]))
    return last.last_seq - first.first_seq + 1


def read_compacted(ledger: Ledger, part: Part) -> tuple[bytes, dict[str, Any], bytes]:
    manifest, manifest_content = layout.read_manifest(ledger.folder, part)
    content = (ledger.folder / part.pattern).read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
        raise LedgerError(f"{part.pattern} was changed after it was written. Run `rose ledger verify`")
    return content, manifest, manifest_content


def _remove_leftovers(ledger: Ledger, writer: str) -> None:
    stems = {f"{part.first:06d}-{part.last:06d}" for part, _ in layout.all_parts(ledger.folder, writer)}
    folder = ledger.folder / "compacted" / writer
    for path in (*folder.glob(".*.tmp"), *folder.glob("*.parquet")):
        if path.stem not in stems and (path.suffix == ".tmp" or layout.MANIFEST_NAME.fullmatch(f"{path.stem}.json")):
            path.unlink()


def _remove_superseded(ledger: Ledger, writer: str, grace_s: float) -> int:
    for leftover in (ledger.folder / "live" / writer).glob(".*.gone"):
        shutil.rmtree(leftover)
    removed = 0
    wider_since = 0.0
    unsent = spool.first_unsent_epoch(ledger.folder, writer)
    for part, superseded in layout.all_parts(ledger.folder, writer):
        if not superseded:
            wider_since = time.time() if part.state == "live" else (ledger.folder / part.manifest).stat().st_mtime
        elif part.state == "live" and unsent is not None and part.last >= unsent:
            continue
        elif time.time() - wider_since >= grace_s:
            if part.state == "compacted":
                (ledger.folder / part.manifest).unlink()
                (ledger.folder / part.pattern).unlink(missing_ok=True)
            else:
                # As a whole, so that no reader ever sees half an epoch.
                folder = ledger.folder / part.folder
                shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.gone")))
            removed += 1
    return removed


def remove_archived(ledger: Ledger, writer: str, grace_s: float) -> int:
    removed = 0
    for part in layout.chain(ledger.folder, writer):
        if part.state == "archived" and time.time() - (ledger.folder / part.manifest).stat().st_mtime >= grace_s:
            with suppress(FileNotFoundError):
                (ledger.folder / f"{part.stem}.parquet").unlink()
                removed += 1
    return removed
