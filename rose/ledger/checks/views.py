"""The views of a ledger: whether its catalog defines what this version makes of the files that lie there."""

from __future__ import annotations

import time
from pathlib import Path

from rose.ledger import catalog, examine, layout
from rose.ledger.examine import Seen
from rose.ledger.layout import LedgerError

#: How long a catalog is looked at that somebody may be about to replace: where another process has a writer open, which
#: hardly gets the processor on a busy host, and else.
_BESIDE_WRITERS_S, _ALONE_S = 10.0, 1.0
#: How long it may take until parts that are being moved lie where they will.
_WHILE_PARTS_MOVE_S = 600.0
_LOOK_S = 0.05


def faults(root: Path, seen: Seen) -> tuple[list[str], list[str]]:
    """What is wrong with the catalog of the ledger at `root`, and what is to be said of it that is no fault."""
    begun_s = time.monotonic()
    while True:
        # Before the look: what moves the parts makes the catalog new before it ends.
        moving = layout.parts_are_moving(root)
        try:
            path = root / layout.CATALOG
            kind = f"views {seen.facts(path, 'sha256', examine.sha256_of)} {catalog.made_of(root)}"
            problems = seen.once(path, kind, lambda: catalog.faults(root))
        except (LedgerError, FileNotFoundError):
            # A damaged roll-up is named where it is looked at; a catalog that is missing is made by the next reader.
            return [], []
        except OSError as error:
            return [f"{layout.CATALOG}: it cannot be read ({error.strerror}); move away what lies there"], []
        if not problems:
            return [], []
        if catalog.was_moved(problems):
            # Nothing was changed: whoever reads by a `rose` command reads the files that were verified.
            way_out = "other DuckDB clients see that place until the next `rose` command that reads this ledger"
            return [], [f"{layout.CATALOG}: {fault}; {way_out}" for fault in problems]
        if not catalog.may_be_late(problems):
            break
        # Somebody has begun an epoch or merged some, and is about to say so.
        patience_s = _BESIDE_WRITERS_S if layout.others_write(root) else _ALONE_S
        if time.monotonic() - begun_s > (_WHILE_PARTS_MOVE_S if moving else patience_s):
            break
        time.sleep(_LOOK_S)
    if catalog.is_stale(root):
        # A process was killed before it replaced the catalog.
        stale = "it is stale, and does not show the newest files; the next `rose` command that reads the ledger"
        return [], [f"{layout.CATALOG}: {stale} replaces it"]
    way_out = "it was edited, or made by another version; the next `rose` command that reads the ledger replaces it"
    return [f"{layout.CATALOG}: {fault}; {way_out}" for fault in problems], []
