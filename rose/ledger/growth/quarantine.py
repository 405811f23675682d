"""Quarantine: one damaged file makes every query of every reader fail; moved away, reading goes on without it.

Nothing is made well by that: the file's events are missing, and verification says so for ever.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from rose.events import Ledger
from rose.ledger import examine, layout, segments
from rose.ledger.growth import compaction
from rose.ledger.layout import LedgerError, Part
from rose.ledger.writer import LedgerWriter

FOLDER = "quarantine"
WRITER = "quarantine"
QUARANTINED_ACTION = "quarantined"


def quarantine(root: Path | str, paths: Sequence[str]) -> list[str]:
    """Move damaged or foreign files, named relative to the ledger, to `quarantine/`; returns their new paths.

    A compacted file takes its manifest along. May be repeated after an interruption. Raises LedgerError, before
    anything is moved, for a path that is no file of the live or compacted parts, and for a sound file.
    """
    root = layout.check(root)
    names = [_relative(root, path) for path in paths]
    for name in names:
        if not (root / name).exists() and not (root / FOLDER / name).exists():
            raise LedgerError(f"{root / name} does not exist; `rose ledger verify` names the damaged files")
        if (root / name).exists() and _sound(root, name):
            raise LedgerError(f"{name} is sound and stays; `rose ledger verify` names the damaged files")
    try:
        with layout.moving_parts(root):
            for name in names:
                # The manifest first: without it the file no longer counts.
                manifest = Path(name).with_suffix(".json")
                for relative in (manifest, Path(name)) if name.startswith("compacted/") else (Path(name),):
                    if (root / relative).exists():
                        layout.move_file(root / relative, root / FOLDER / relative)
        # Only now: with a damaged file in its way no catalog can be made, and no writer opened.
        with LedgerWriter.open(root, WRITER, layout.UPKEEP_RUN_ID) as log:
            recorded = {detail["file"] for detail in examine.recorded(root, WRITER, QUARANTINED_ACTION)}
            for name in names:
                if name not in recorded:
                    sha256 = hashlib.sha256((root / FOLDER / name).read_bytes()).hexdigest()
                    detail = json.dumps({"file": name, "moved_to": f"{FOLDER}/{name}", "sha256": sha256})
                    log.record(Ledger(action=QUARANTINED_ACTION, detail_json=detail), durable=True)
    except OSError as error:
        raise LedgerError(f"cannot quarantine in {root}: {error}") from error
    return [f"{FOLDER}/{name}" for name in names]


def _relative(root: Path, path: str) -> str:
    given = Path(path)
    inside = given.resolve() if given.is_absolute() else (root / given).resolve()
    if not inside.is_relative_to(root) or inside.relative_to(root).parts[:1] not in (("live",), ("compacted",)):
        raise LedgerError(
            f"{path} is not a file of the ledger's live/ or compacted/; name it as `rose ledger verify` does"
        )
    name = inside.relative_to(root).as_posix()
    return name.replace(".json", ".parquet") if name.startswith("compacted/") else name


def _sound(root: Path, name: str) -> bool:
    """Whether the file is what its name or its manifest says, so that DuckDB can read it."""
    content = (root / name).read_bytes()
    _, writer, *_ = Path(name).parts
    if name.startswith("live/"):
        segment = layout.SEGMENT_NAME.fullmatch(Path(name).name)
        return segment is not None and examine.segment(content, segments.sha256_in(name)).fault is None
    match = layout.MANIFEST_NAME.fullmatch(Path(name).with_suffix(".json").name)
    if match is None:
        return False
    part = Part(writer, int(match["first"]), int(match["last"]), "compacted")
    try:
        return examine.rows(content, compaction.read_manifest(root, part)[1]).fault is None
    except (LedgerError, OSError, KeyError, TypeError):
        return False
