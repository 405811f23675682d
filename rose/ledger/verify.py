"""Verifies a ledger while its writers write: bytes, links, seqs, names, views, and events about upkeep."""

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from rose.clock import utc_us
from rose.ledger import verified
from rose.ledger.checks.chain import Chain, WriterReport
from rose.ledger.checks.expected import ROLL_UP_WRITER, UPKEEP_WRITERS, Expected, Records, roll_up_faults
from rose.ledger.files import catalog, examine, layout, registry, rolled, sources, spool
from rose.ledger.files.content import check_footers
from rose.ledger.files.examine import Seen
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.rolled import CLIENT_ID, ROLLUPS

_THREADS = 2  # Writers at once. Decoding and hashing free the interpreter, and one writer's file takes some 200 MB.
#: Files and folders that readers of a ledger go by.
_READ = ("live", "compacted", "archived", "heads", rolled.FOLDER, registry.FILE, layout.MARKER, layout.CATALOG)


@dataclass(slots=True)
class Report:
    root: Path
    writers: list[WriterReport]
    roll_ups: list[str] = field(default_factory=list)
    folder: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    registry: bytes = b""

    @property
    def problems(self) -> list[str]:
        return [*(problem for writer in self.writers for problem in writer.problems), *self.roll_ups, *self.folder]

    @property
    def unchecked(self) -> list[str]:
        return [*(structure for writer in self.writers for structure in writer.unchecked), *self.links]

    @property
    def doubts(self) -> list[str]:
        return [*self.problems, *(f"{structure}: not checked" for structure in self.unchecked)]

    @property
    def ok(self) -> bool:
        return not self.doubts


def verify(root: Path, seen: Seen, marks: Mapping[str, Sequence[int]]) -> Report:
    """Verify the ledger at `root`. Read every byte, or only new and changed files if `seen` has findings of earlier
    checks. The report has the link of each writer's chain just before each seq in `marks`."""
    layout.check(root)  # It may be gone since it was opened.
    began_us = utc_us()
    with seen.lock:
        before = verified.state(root)
        full = not seen.entries
        last_full_us = None if before is None else before.full_until_us
        if full:
            seen.full_until_us = began_us
        elif seen.full_until_us < (last_full_us or 0):
            # A file that decayed on the disk looks unchanged, so the full verification's findings count.
            seen.forget_where_other(verified.load(root))
            seen.full_until_us = last_full_us or 0
        records = Records(root, seen)
        expected = Expected(root, records, before)
        pool = ThreadPoolExecutor(_THREADS, "verify")
        try:
            walk = functools.partial(_verify_writer, root, seen, expected, records, marks)
            writers = list(pool.map(walk, expected.writers))
        finally:
            pool.shutdown(cancel_futures=True)
            # Otherwise some 300 MB stay allocated, which pricing may need next.
            pa.default_memory_pool().release_unused()
        edited, moved = view_faults(root, seen)
        reports = [writer_report for writer_report, _ in writers]
        misused, first_used = _signers(root, seen, registry.sound_lines(root) or expected.lines, reports)
        lost = (f"{path}: it is missing, and the archive did not restore its events" for path in records.lost())
        folder = [*_folder(root, seen, expected), *lost, *edited, *misused]
        notes, links = [*moved, *first_used], list(_links(root, _READ))
        report = Report(root, reports, roll_up_faults(root, seen), folder, notes, links, expected.registry)
        heads = {one.writer: newest for one, newest in writers if newest and not one.problems}
        seen.forget_unvisited()
    if full:
        verified.save(root, seen)
    outcome = verified.State(
        until_us=began_us,
        full_until_us=began_us if full else last_full_us,
        problems=len(report.problems),
        unchecked=len(report.unchecked),
        events=sum(writer_report.events for writer_report in report.writers),
        by=verified.user_at_host(),
        # A segment that was there once is required until it is back.
        heads={**({} if before is None else before.heads), **heads},
    )
    verified.leave(root, outcome)
    return report


def _folder(root: Path, seen: Seen, expected: Expected) -> list[str]:
    problems = [*_foreign_names(root)]
    for writer in UPKEEP_WRITERS:
        problems += examine.detail_faults(root, writer, seen)
    if expected.problem is not None:
        problems.append(expected.problem)
    if expected.lines:
        ledger_id = layout.ledger_id(root)

        def signatures(content: bytes) -> list[str]:
            return list(registry.signature_faults(ledger_id, registry.parse(content)))

        with suppress(OSError, LedgerError):
            problems += seen.facts(root / registry.FILE, f"registry {ledger_id}", signatures)
    return problems


def _signers(
    root: Path, seen: Seen, known: Sequence[registry.Line], writers: Sequence[WriterReport]
) -> tuple[list[str], list[str]]:
    """Return problems and notes about signatures by unendorsed keys. `known` has the lines of the registry."""
    standing = registry.endorsements(known)
    problems: list[str] = []
    notes: list[str] = []
    first_use: dict[str, list[str]] = {}
    for report in writers:
        endorsed_for = {key for name, key in standing.pairs if name == report.writer}
        for signer in {signer.key: signer for signer in reversed(report.signers) if signer.key}.values():
            remedy = f"if it may, run `rose ledger endorse {signer.key} --writer {report.writer}`"
            if signer.key in endorsed_for:
                continue
            if report.writer == ROLL_UP_WRITER:
                sums, unknown = _sums(root, seen)
                problems += (f"{problem}, and {signer.key} signed them; it was forged" for problem in sums)
                notes += (f"the daily sums that {signer.key} signed were not compared: {why}" for why in unknown)
            of_another = signer.key in standing.keys and report.writer == layout.CLOSING_WRITER
            if (endorsed_for and not spool.is_upkeep(report.writer)) or of_another:
                problems.append(
                    f"{signer.segment}: from seq {signer.first_seq} on, writer {report.writer} is signed by "
                    f"{signer.key}, which is not endorsed for this writer: it was forged, or its host has a new key; "
                    f"{remedy}"
                )
            elif signer.key not in standing.keys:
                first_use.setdefault(signer.key, []).append(report.writer)
            else:
                notes.append(
                    f"writer {report.writer} is signed by {signer.key}, which no known key endorsed for this writer: "
                    f"it may come from another ledger; {remedy}"
                )
    notes += (
        f"key {key}, of {', '.join(names)}, was taken on first use, and no other key endorsed it: "
        f"if it is known to you, run `rose ledger endorse {key}`"
        for key, names in sorted(first_use.items())
    )
    return problems, notes


def _sums(root: Path, seen: Seen) -> tuple[list[str], list[str]]:
    try:
        if (coverage := rolled.newest(root)) is None:
            return [], []
        path = root / coverage.folder / "coverage.json"
        problems, missing, _ = seen.once(path, f"sums {coverage.sha256}", lambda: sum_faults(root))
    except LedgerError:
        return [], []  # `roll_up_faults` names a damaged roll-up.
    return problems, [] if missing is None else [missing]


def _verify_writer(
    root: Path, seen: Seen, expected: Expected, records: Records, marks: Mapping[str, Sequence[int]], writer: str
) -> tuple[WriterReport, str]:
    """Return a writer's report and its newest segment. Check again if parts were merged or archived meanwhile."""
    while True:
        before = layout.chain(root, writer)
        chain = Chain(root, writer, records, seen, expected, marks.get(writer, ()))
        report = chain.walk(before)
        chain.check_expected()
        if not report.problems or set(before) <= set(layout.chain(root, writer)):
            return report, chain.newest


def _foreign_names(root: Path) -> Iterator[str]:
    is_writer, is_span = layout.WRITER_NAME.fullmatch, layout.manifest_span
    ids = rolled.ID_FOLDER.rpartition("/")[2]
    places: tuple[tuple[str, bool, Callable[[str], object]], ...] = (
        ("live", True, is_writer),
        ("live/*", True, layout.is_number),
        ("compacted", True, is_writer),
        ("compacted/*", False, lambda name: is_span(name.replace(".parquet", ".json"))),
        ("archived", True, is_writer),
        ("archived/*", False, is_span),
        ("heads", False, re.compile(rf"{layout.WRITER_NAME.pattern}\.(json|next)").fullmatch),
        (rolled.FOLDER, True, lambda name: layout.is_number(name) or name == ids),
        (rolled.ID_FOLDER, False, rolled.is_id_file),
        (f"{rolled.FOLDER}/[0-9]*", False, re.compile(r"coverage\.json|\w+\.parquet").fullmatch),
    )
    for pattern, are_folders, is_own in places:
        for path in sorted(folder / name for folder in root.glob(pattern) for name in layout.names(folder)):
            own = is_own(path.name) and path.is_dir() == are_folders
            # A file that is gone by now was a leftover, or was merged.
            if not own and not layout.LEFTOVER_NAME.fullmatch(path.name) and path.exists():
                yield f"{path.relative_to(root)}: a foreign name: no file of a ledger has it"


def _links(root: Path, paths: Iterable[str]) -> Iterator[str]:
    """Yield a text for each symbolic link in paths that readers use. A link's target is not part of the ledger."""
    for path in paths:
        if (root / path).is_symlink():
            yield f"{path}: a link to {(root / path).readlink()}"
        else:
            yield from _links(root, [f"{path}/{name}" for name in sorted(layout.names(root / path))])


class Sums(NamedTuple):
    problems: list[str]
    missing: str | None = None  # Why they cannot be compared.
    unchecked: tuple[str, ...] = ()


def sum_faults(root: Path) -> Sums:
    """Return the faults of the newest daily sums. This takes as long as a first roll-up."""
    coverage = rolled.newest(root)
    if coverage is None or not coverage.writers:
        # Sums that count nothing have no reader, and older versions left some.
        return Sums([])
    if not coverage.complete:
        return Sums([], f"{coverage.folder} is of another version of ROSE; the next roll-up makes it anew")
    for part in layout.archived_parts(root):
        if part.first <= coverage.writers.get(part.writer, (-1, 0))[0]:
            return Sums([], f"events in {part.manifest} are archived; restore them first")
    problems: list[str] = []
    unchecked: list[str] = []
    try:
        with catalog.connect(root) as connection:
            stored = sources.client_ids(root, coverage.ids)
            # Only the roll-up knows which record of an id came first, and `retry` reads it there.
            connection.execute(f"CREATE TEMP VIEW rolled_{CLIENT_ID} AS {stored}")
            catalog.limit(connection, root, (None, coverage.writers), "retry")
            for name in ROLLUPS:
                file = f"{coverage.folder}/{name}.parquet"
                if differing := _differing(connection, sources.parquet(root, [file]), f"FROM {name}"):
                    problems.append(f"{file}: {differing:,} rows are not the sums of the events that they count")
            if differing := _differing(connection, stored, sources.new_client_ids()):
                problems.append(f"{rolled.ID_FOLDER}: {differing:,} rows are not the ids of their events")
        for file in (*(f"{coverage.folder}/{name}.parquet" for name in ROLLUPS), *coverage.ids):
            try:
                unchecked += (f"{file}: {structure}" for structure in check_footers((root / file).read_bytes()))
            except (OSError, LedgerError, pa.ArrowException) as error:
                problems.append(f"{file}: {error}")
    except duckdb.Error as error:
        raise LedgerError(f"the daily sums of {root} cannot be compared: {error}") from error
    return Sums(problems, None, tuple(unchecked))


def _differing(connection: duckdb.DuckDBPyConnection, stored: str, again: str) -> int:
    both = f"SELECT *, 1 AS _copies FROM ({stored}) UNION ALL SELECT *, -1 FROM ({again})"
    counted = f"SELECT * EXCLUDE (_copies), sum(_copies) AS _copies FROM ({both}) GROUP BY ALL"
    return int(connection.execute(f"SELECT coalesce(sum(abs(_copies)), 0) FROM ({counted})").fetchall()[0][0])


#: Seconds to wait for a catalog that another process may be about to replace; and while parts are moved.
_RETRY_S, _WHILE_PARTS_MOVE_S = 2.0, 600.0
_LOOK_S = 0.05
_NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class Fault:
    writer: str
    seq: int
    kind: str
    fault: str
    value: str | None

    def __str__(self) -> str:
        return f"{self.writer}/{self.seq}: event {self.kind!r}: {self.fault}, got {self.value}"


def faulty_events(root: Path | str, limit: int = _NAMED_MAX) -> tuple[int, list[Fault]]:
    with catalog.connect(root) as connection:
        (count,) = connection.execute("SELECT count(*) FROM faulty_event").fetchall()[0]
        select = "SELECT writer, seq, kind, fault, value FROM faulty_event ORDER BY ALL LIMIT ?"
        return count, [Fault(*row) for row in connection.execute(select, [limit]).fetchall()] if count else []


def view_faults(root: Path, seen: Seen) -> tuple[list[str], list[str]]:
    begun_s = time.monotonic()
    while True:
        retry_s = _WHILE_PARTS_MOVE_S if layout.is_locked(layout.lock_file(root, layout.PARTS_LOCK)) else _RETRY_S
        try:
            path = root / layout.CATALOG
            kind = f"views {seen.facts(path, 'sha256', examine.sha256_of)} {catalog.made_of(root)}"
            problems, notes = seen.once(path, kind, lambda: catalog.faults(root))
        except (LedgerError, FileNotFoundError):
            # `roll_ups` names a damaged roll-up, and the next reader makes a missing catalog.
            return [], []
        except OSError as error:
            return [f"{layout.CATALOG}: it cannot be read ({error.strerror}); move away what lies there"], []
        # Parts may have been restored, and the catalog is about to follow.
        late = all(any(f"view internal.{name} " in problem for name in sources.of_nothing()) for problem in problems)
        if not problems or not late or time.monotonic() - begun_s > retry_s:
            way_out = "the next `rose` command that reads the ledger replaces it"
            edited = "it was edited, or made by another version"
            return (
                [f"{layout.CATALOG}: {problem}; {edited}; {way_out}" for problem in problems],
                [f"{layout.CATALOG}: {note}; {way_out}" for note in notes],
            )
        time.sleep(_LOOK_S)
