"""Verification: every byte, link and seq of a ledger, its names, views and upkeep events, while its writers write."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from rose.clock import utc_us
from rose.ledger import examine, layout, verified
from rose.ledger.checks import registry, views
from rose.ledger.checks.chain import Chain, WriterReport
from rose.ledger.checks.expected import (
    ARCHIVE_WRITER,
    COMPACTION_WRITER,
    ROLL_UP_WRITER,
    Expected,
    Records,
    roll_up_faults,
)
from rose.ledger.checks.sums import sum_faults
from rose.ledger.examine import Seen
from rose.ledger.growth import rolled
from rose.ledger.hosts import spool
from rose.ledger.layout import LedgerError

_THREADS = 2  # Writers at once. Decoding and hashing free the interpreter, and one writer's file takes some 200 MB.
#: Files and folders that readers of a ledger go by.
_READ = ("live", "compacted", "archived", "heads", rolled.FOLDER, registry.FILE, layout.MARKER, layout.CATALOG)
CLOSING_WRITER = "closing"  # Its events prove the frozen charges of closed periods.


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


def verify(root: Path | str, *, seen: Seen | None = None, marks: Mapping[str, Sequence[int]] | None = None) -> Report:
    """Check the ledger at `root`, and leave a record of it (see `rose.ledger.verified`). Finds a changed byte; a
    missing, reordered or foreign file, writer or roll-up; a gap or repeat in seq; views of another version. Additions
    meanwhile are not checked. Reads every byte, or with `seen` the files that are new or changed since by size and
    times. The report has the links at the seqs `marks` of writers. Raises LedgerError if `root` is no ledger."""
    root = layout.check(root)
    began_us = utc_us()
    seen = seen or Seen()
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
            walk = functools.partial(_verify_writer, root, expected, records, seen, marks or {})
            writers = list(pool.map(walk, expected.writers))
        finally:
            pool.shutdown(cancel_futures=True)
            # Otherwise some 300 MB stay allocated, which pricing may need next.
            pa.default_memory_pool().release_unused()
        edited, moved = views.faults(root, seen)
        reports = [writer_report for writer_report, _ in writers]
        misused, first_used = _signers(root, registry.sound_lines(root) or expected.lines, reports, seen)
        lost = (f"{path}: it is missing, and the archive did not bring its events back" for path in records.lost())
        folder = [*_folder(root, expected, seen), *lost, *edited, *misused]
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


def verify_changed(root: Path | str) -> Report:
    """`verify`, which reads only files that are new or changed by size, inode and times. Raises LedgerError."""
    seen = verified.load(root)
    report = verify(root, seen=seen)
    verified.save(root, seen)
    return report


def _folder(root: Path, expected: Expected, seen: Seen) -> list[str]:
    problems = [*_foreign_names(root)]
    for writer in (COMPACTION_WRITER, ARCHIVE_WRITER, ROLL_UP_WRITER):
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
    root: Path, known: Sequence[registry.Line], writers: Sequence[WriterReport], seen: Seen
) -> tuple[list[str], list[str]]:
    """Return problems and notes on keys that no known key endorsed for the writer that they sign for. Whoever has the
    folder may do its upkeep. A foreign roll-up is compared with the events, since daily views read its sums. Nothing
    else proves an event of the books, so a key of other writers alone may not sign one."""
    standing = registry.endorsements(known)
    problems: list[str] = []
    notes: list[str] = []
    first_use: dict[str, list[str]] = {}
    for report in writers:
        endorsed_for = {key for name, key in standing.pairs if name == report.writer}
        for signer in {signer.key: signer for signer in reversed(report.signers) if signer.key}.values():
            way_out = f"if it may, run `rose ledger endorse {signer.key} --writer {report.writer}`"
            if signer.key in endorsed_for:
                continue
            if report.writer == ROLL_UP_WRITER:
                sums, unknown = _sums(root, seen)
                problems += (f"{problem}, and {signer.key} signed them; it was forged" for problem in sums)
                notes += (f"the daily sums that {signer.key} signed were not compared: {why}" for why in unknown)
            of_another = signer.key in standing.keys and report.writer == CLOSING_WRITER
            if (endorsed_for and not spool.is_upkeep(report.writer)) or of_another:
                problems.append(
                    f"{signer.segment}: from seq {signer.first_seq} on, writer {report.writer} is signed by "
                    f"{signer.key}, which is not endorsed for this writer: it was forged, or its host has a new key; "
                    f"{way_out}"
                )
            elif signer.key not in standing.keys:
                first_use.setdefault(signer.key, []).append(report.writer)
            else:
                notes.append(
                    f"writer {report.writer} is signed by {signer.key}, which no known key endorsed for this writer: "
                    f"it may come from another ledger; {way_out}"
                )
    notes += (
        f"key {key}, of {', '.join(names)}, was taken on first use, and no other key endorsed it: "
        f"if it is known to you, run `rose ledger endorse {key}`"
        for key, names in sorted(first_use.items())
    )
    return problems, notes


def _sums(root: Path, seen: Seen) -> tuple[list[str], list[str]]:
    """Return the faults of the newest daily sums, and why they cannot be compared with their events, if so."""
    try:
        if (coverage := rolled.newest(root)) is None:
            return [], []
        path = root / coverage.folder / "coverage.json"
        problems, missing, _ = seen.once(path, f"sums {coverage.sha256}", lambda: sum_faults(root))
    except LedgerError:
        return [], []  # `roll_up_faults` names a damaged roll-up.
    return problems, [] if missing is None else [missing]


def _verify_writer(
    root: Path, expected: Expected, records: Records, seen: Seen, marks: Mapping[str, Sequence[int]], writer: str
) -> tuple[WriterReport, str]:
    """Return the report and the newest segment's path. Parts that moved meanwhile are read again."""
    while True:
        before = layout.chain(root, writer)
        chain = Chain(root, writer, records, seen, expected, marks.get(writer, ()))
        report = chain.walk(before)
        chain.check_expected()
        if not report.problems or set(before) <= set(layout.chain(root, writer)):
            return report, chain.newest


def _foreign_names(root: Path) -> Iterator[str]:
    yield from _foreign(root, "live", layout.WRITER_NAME.fullmatch, folders=True)
    for writer in layout.names(root / "live"):
        yield from _foreign(root, f"live/{writer}", layout.is_number, folders=True)
    for state, is_own in (("compacted", _is_compacted), ("archived", layout.manifest_span)):
        yield from _foreign(root, state, layout.WRITER_NAME.fullmatch, folders=True)
        for writer in layout.names(root / state):
            yield from _foreign(root, f"{state}/{writer}", is_own)
    yield from _foreign(root, "heads", _is_head)
    ids = rolled.ID_FOLDER.rpartition("/")[2]
    yield from _foreign(root, rolled.FOLDER, lambda name: layout.is_number(name) or name == ids, folders=True)
    yield from _foreign(root, rolled.ID_FOLDER, rolled.is_id_file)
    for generation in layout.names(root / rolled.FOLDER):
        if layout.is_number(generation):
            yield from _foreign(root, f"{rolled.FOLDER}/{generation}", _is_rolled)


def _foreign(root: Path, folder: str, is_own: Callable[[str], object], *, folders: bool = False) -> Iterator[str]:
    for name in sorted(layout.names(root / folder)):
        path = root / folder / name
        own = is_own(name) and path.is_dir() == folders
        # A file that is gone by now was a leftover, or was merged.
        if not own and not layout.LEFTOVER_NAME.fullmatch(name) and path.exists():
            yield f"{folder}/{name}: a foreign name: no file of a ledger has it"


def _links(root: Path, paths: Iterable[str]) -> Iterator[str]:
    """Yield what readers of the ledger reach by a link: the files behind it are not the ledger's own."""
    for path in paths:
        if (root / path).is_symlink():
            yield f"{path}: a link to {(root / path).readlink()}"
        else:
            yield from _links(root, [f"{path}/{name}" for name in sorted(layout.names(root / path))])


def _is_compacted(name: str) -> bool:
    return layout.manifest_span(name.replace(".parquet", ".json")) is not None


def _is_head(name: str) -> bool:
    stem, _, suffix = name.rpartition(".")
    return suffix in ("json", "next") and layout.WRITER_NAME.fullmatch(stem) is not None


def _is_rolled(name: str) -> bool:
    stem, _, suffix = name.partition(".")
    return name == "coverage.json" or (suffix == "parquet" and stem.replace("_", "").isalnum())
