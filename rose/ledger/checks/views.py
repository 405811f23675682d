"""The views of a ledger: whether its catalog defines what this version makes of the files that lie there."""

from __future__ import annotations

import time
from pathlib import Path

from rose.ledger import catalog, examine, layout
from rose.ledger.examine import Seen
from rose.ledger.layout import LedgerError

#: How often, and how long apart, the catalog is looked at that a writer at work is about to replace.
_LOOKS, _LOOK_S = 20, 0.05


def faults(root: Path, seen: Seen) -> tuple[list[str], list[str]]:
    """What is wrong with the catalog of the ledger at `root`, and what is to be said of it that is no fault."""
    for _ in range(_LOOKS):
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
        # A writer has begun an epoch, and is about to say so.
        time.sleep(_LOOK_S)
    way_out = "it was edited, or made by another version; the next `rose` command that reads the ledger replaces it"
    return [f"{layout.CATALOG}: {fault}; {way_out}" for fault in problems], []
