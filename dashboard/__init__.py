"""The dashboard: what rollouts cost, where device time went, and what serving's clients saw, from any ledger.

`rose dashboard` starts it. Importing this package alone loads no Streamlit.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from rose.ledger import layout
from rose.ledger.layout import LedgerError

#: How many folders below the working directory are looked through for a ledger.
_DEPTH = 3


class NoLedgerError(LedgerError):
    """There is no ledger to show, or the folder that was named is none."""


def ledger_to_show(ledger: Path | None) -> Path:
    """The ledger to open: the one that was named, else ./ledger, else the newest below ., else the sample ledger.

    Raises NoLedgerError if the named folder is no ledger, or if nothing was named and there is none at all.
    """
    if ledger is not None:
        try:
            return layout.check(ledger)
        except LedgerError as error:
            raise NoLedgerError(str(error)) from error
    here = Path.cwd()
    if _is_ledger(here / "ledger"):
        return here / "ledger"
    if folders := [marker.parent for marker in _markers(here) if _is_ledger(marker.parent)]:
        return max(folders, key=_last_written)
    sample = Path(str(resources.files("sample_traces"))) / "ledger"
    if _is_ledger(sample):
        return sample
    raise NoLedgerError(
        f"there is no ledger in {here} or below it, and no sample ledger is installed; "
        "name one with --ledger, or write one with `rose demo`"
    )


def _is_ledger(folder: Path) -> bool:
    try:
        layout.check(folder)
    except LedgerError:
        return False
    return True


def _markers(here: Path) -> list[Path]:
    """Markers of ledgers at most `_DEPTH` folders down; hidden folders and those of the sample are passed over."""
    markers: list[Path] = []
    level = [here]
    for _ in range(_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            if (folder / layout.MARKER).is_file():
                markers.append(folder / layout.MARKER)
                continue
            try:
                below += [path for path in folder.iterdir() if path.is_dir() and _worth_a_look(path)]
            except OSError:
                continue
        level = below
    return markers


def _worth_a_look(folder: Path) -> bool:
    return not folder.name.startswith(".") and not folder.is_symlink() and folder.name != "sample_traces"


def _last_written(root: Path) -> float:
    """When an event last came in, seconds since the epoch."""
    return max(
        (path.stat().st_mtime for path in root.glob("heads/*.json")), default=(root / layout.MARKER).stat().st_mtime
    )
