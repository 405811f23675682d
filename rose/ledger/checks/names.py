"""Foreign names in the ledger's folders. No view reads them, but a reader of plain files (`live/*/*/*.parquet`) may."""

from collections.abc import Callable
from pathlib import Path

from rose.ledger import layout
from rose.ledger.growth import rolled


def faults(root: Path) -> list[str]:
    """Return foreign names in the folders of segments, manifests, heads and roll-ups. `Chain` checks those in an
    epoch."""
    problems = [*_foreign(root, "live", layout.WRITER_NAME.fullmatch, folders=True)]
    for writer in layout.names(root / "live"):
        problems += _foreign(root, f"live/{writer}", layout.is_number, folders=True)
    for state, known in (("compacted", _is_compacted), ("archived", layout.manifest_span)):
        problems += _foreign(root, state, layout.WRITER_NAME.fullmatch, folders=True)
        for writer in layout.names(root / state):
            problems += _foreign(root, f"{state}/{writer}", known)
    problems += _foreign(root, "heads", _is_head)
    problems += _foreign(root, rolled.FOLDER, _is_of_roll_ups, folders=True)
    problems += _foreign(root, rolled.ID_FOLDER, rolled.is_id_file)
    for generation in layout.names(root / rolled.FOLDER):
        if layout.is_number(generation):
            problems += _foreign(root, f"{rolled.FOLDER}/{generation}", _is_rolled)
    return problems


def _foreign(root: Path, folder: str, known: Callable[[str], object], *, folders: bool = False) -> list[str]:
    problems = []
    for name in sorted(layout.names(root / folder)):
        path = root / folder / name
        own = known(name) and path.is_dir() == folders
        # A file that is gone by now was a leftover, or was merged.
        if not own and not layout.LEFTOVER_NAME.fullmatch(name) and path.exists():
            problems.append(f"{folder}/{name}: a foreign name: no file of a ledger has it")
    return problems


def _is_compacted(name: str) -> bool:
    return layout.manifest_span(name.replace(".parquet", ".json")) is not None


def _is_head(name: str) -> bool:
    stem, _, suffix = name.rpartition(".")
    return suffix in ("json", "next") and layout.WRITER_NAME.fullmatch(stem) is not None


def _is_of_roll_ups(name: str) -> bool:
    return layout.is_number(name) or f"{rolled.FOLDER}/{name}" == rolled.ID_FOLDER


def _is_rolled(name: str) -> bool:
    stem, _, suffix = name.partition(".")
    return name == "coverage.json" or (suffix == "parquet" and stem.replace("_", "").isalnum())
