"""The SQL of the source views, which read segments and roll-ups by absolute paths."""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import sql
from rose.event_columns import all_columns
from rose.ledger.files import layout, registry, rolled, rows, segments
from rose.ledger.files.layout import Part
from rose.ledger.files.rolled import CLIENT_ID, ROLLUPS, Coverage

#: Extent of a roll-up: the coverage before it, and for each writer the last epoch and the seq after it.
Span = tuple[Coverage | None, dict[str, tuple[int, int]]]
#: The generation of sums and each writer's parts that views read; and the part that gives the columns.
Files = tuple[Coverage | None, Mapping[str, Sequence[Part]], Part | None]
#: From this many merged files on, naming all columns takes less time than reading them from each file.
_MERGED_MANY = 64
BY_NAME = "union_by_name = true"
#: A file or pattern in a definition, after the folder of its ledger.
_FILE = re.compile(
    r"'(?P<place>/(?:[^']|'')*)/(?:live/(?P<live>[^/']+)/(?P<epoch>\d+)/[^/']+|"
    r"compacted/(?P<compacted>[^/']+)/(?P<first>\d+)-(?P<last>\d+)\.parquet)'"
)
_GENERATION = re.compile(rf"/{rolled.FOLDER}/(\d+)/")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def of_nothing() -> dict[str, str]:
    return selects(Path(), files=(None, {}, None))


def selects(
    root: Path, until: Span | None = None, place: Path | None = None, files: Files | None = None
) -> dict[str, str]:
    """Return the SELECT of each source view, in the order of their creation. With `until`, the views read only
    events that a roll-up up to `until` covers. They read `files` (None: all). Paths begin with `place` (or `root`)."""
    place = place or root
    newest, parts, whole = files or _lying(root)
    coverage, ends = until or (newest if newest is not None and newest.complete else None, {})
    covered = {} if coverage is None else coverage.writers
    patterns: list[str] = []
    unrolled: list[str] = []
    apart: list[str] = []
    for writer in sorted(parts):
        epoch, next_seq = covered.get(writer, (-1, 0))
        end_epoch, end_seq = ends.get(writer, (2**62 if until is None else -1, 0))
        for part in parts[writer]:
            patterns.append(part.pattern)
            if part.last <= epoch or part.first > end_epoch:
                continue
            unrolled.append(part.pattern)
            # Epochs on both sides of a watermark were merged since.
            if part.first <= epoch:
                apart.append(f"writer = {quoted(writer)} AND seq < {next_seq}")
            if part.last > end_epoch:
                apart.append(f"writer = {quoted(writer)} AND seq >= {end_seq}")
    sources = {
        "writer_order": writer_order(root, sorted(parts)),
        "stored_event": events(place, patterns, whole.pattern if whole else None),
        "unrolled_stored_event": events(place, unrolled, whole.pattern if whole else None, apart),
    }
    rolled_up = coverage if covered else None
    files_of = {name: [f"{rolled_up.folder}/{name}.parquet"] if rolled_up else [] for name in ROLLUPS}
    for name, paths in {CLIENT_ID: [*rolled_up.ids] if rolled_up else [], **files_of}.items():
        sources[f"rolled_{name}"] = parquet(place, paths) if paths else no_roll_up(f"rolled_{name}")
    return sources


def _lying(root: Path) -> Files:
    newest = rolled.newest(root)
    parts = {writer: layout.parts(root, writer) for writer in layout.writers(root)}
    live = (part for writer in sorted(parts) for part in parts[writer] if part.state == "live")
    return newest, parts, next((part for part in live if has_the_columns(root / part.folder)), None)


def writer_order(root: Path, writers: Sequence[str]) -> str:
    """Return a SELECT of these writers and their order in the registry. Unregistered writers come last."""
    lines = registry.sound_lines(root) if writers else ()
    came = {writer: place for place, writer in enumerate(dict.fromkeys(line.writer for line in lines))}
    ordered = sorted(writers, key=lambda writer: (came.get(writer, len(came)), writer))
    listed = ", ".join(map(quoted, ordered))
    return f"SELECT unnest([{listed}]::VARCHAR[]) AS writer, unnest(range({len(ordered)})) AS place"


def client_ids(root: Path, paths: Iterable[str]) -> str:
    return parquet(root, paths) if (paths := list(paths)) else no_roll_up(f"rolled_{CLIENT_ID}")


def new_client_ids() -> str:
    return sql.read(f"rollups/{CLIENT_ID}.sql").strip().strip(";")


def parquet(root: Path, paths: Sequence[str], *options: str) -> str:
    files = ", ".join(quoted(f"{root}/{path}") for path in paths)
    # Folders above the ledger do not count, even one named `year=2026`.
    return f"SELECT * FROM read_parquet({', '.join([f'[{files}]', *options, 'hive_partitioning = false'])})"


def no_roll_up(name: str) -> str:
    if name == f"rolled_{CLIENT_ID}":
        columns = ("run_id", "kind", "event_id", "writer")
        return f"SELECT {', '.join(f'NULL::VARCHAR AS {name}' for name in columns)}, NULL::BIGINT AS seq WHERE false"
    return f"FROM un{name} WHERE false"


def events(root: Path, patterns: Sequence[str], whole: str | None = None, apart: Sequence[str] = ()) -> str:
    """Return a SELECT of the events in the files of `patterns`, without rows that meet a condition in `apart`.

    `whole` is a pattern whose first file has all columns. With `whole`, query plans are ten times shorter. If there are
    many merged files, the SELECT leaves out columns that this version does not know."""
    where = f" WHERE NOT ({' OR '.join(apart)})" if apart else ""
    if sum(pattern.startswith("compacted/") for pattern in patterns) >= _MERGED_MANY:
        return parquet(root, patterns, _known_columns()) + where
    if whole in patterns:
        patterns = sorted(patterns, key=lambda pattern: pattern != whole)
        return parquet(root, patterns, BY_NAME) + where
    columns = ", ".join(f'NULL::{sql_type} AS "{name}"' for name, sql_type in all_columns().items())
    none = f"SELECT {columns} WHERE false"
    if not patterns:
        return none
    return f"{none} UNION ALL BY NAME {parquet(root, patterns, BY_NAME)}{where}"


@functools.cache
def _known_columns() -> str:
    columns = (
        f"{quoted(name)}: {{name: {quoted(name)}, type: {quoted(sql_type)}, default_value: NULL}}"
        for name, sql_type in all_columns().items()
    )
    return f"schema = MAP {{{', '.join(columns)}}}"


def has_the_columns(epoch: Path) -> bool:
    """Return whether the first segment of an epoch has the columns of this version."""
    try:
        return _column_names(epoch / min(segments.segment_names(epoch))) == tuple(rows.schema().names)
    except (OSError, ValueError, pa.ArrowException):
        return False


@functools.lru_cache(maxsize=4096)
def _column_names(segment: Path) -> tuple[str, ...]:
    return tuple(pq.read_schema(segment).names)


def place(definition: str) -> Path | None:
    match = _FILE.search(definition)
    return None if match is None else Path(match["place"].replace("''", "'"))


def shown(root: Path, definitions: Mapping[str, str]) -> Files | None:
    """Return the files that the views read, or None if these never were the ledger's files. Raises LedgerError."""
    parts: dict[str, list[Part]] = {}
    for part in _parts(definitions.get("stored_event", "")):
        parts.setdefault(part.writer, []).append(part)
    # The part that gave the columns comes first; it depends on when the views were made.
    taken = (definitions.get(name, "") for name in ("stored_event", "unrolled_stored_event"))
    firsts = (
        next(_parts(text), None) for text in taken if "UNION ALL BY NAME" not in text and '"schema" =' not in text
    )
    whole = next(filter(None, firsts), None)
    for writer, read in parts.items():
        read.sort(key=lambda part: part.first)
        lying = [part.first for part in layout.parts(root, writer)]
        gap = any(later.first != part.last + 1 for part, later in itertools.pairwise(read))
        if gap or not lying or read[0].first > lying[0]:
            return None
    generation = _GENERATION.search(definitions.get(f"rolled_{ROLLUPS[0]}", ""))
    coverage = None if generation is None else rolled.read(root, int(generation[1]))
    return None if generation is not None and coverage is None else (coverage, parts, whole)


def _parts(definition: str) -> Iterator[Part]:
    for match in _FILE.finditer(definition):
        if match["live"]:
            yield Part(match["live"], int(match["epoch"]), int(match["epoch"]), "live")
        else:
            yield Part(match["compacted"], int(match["first"]), int(match["last"]), "compacted")
