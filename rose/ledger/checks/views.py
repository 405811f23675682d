"""The views of a ledger: whether its catalog defines what this version makes of its files, and rows that are no events.

Events are checked where they enter (`rose.ledger.rows`). For rows that entered by another way, each view leaves out
those that it could not reckon with, and the view `faulty_event` has each such row: see `sql.reckonable`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rose.ledger import catalog, examine, layout, sources
from rose.ledger.examine import Seen
from rose.ledger.layout import LedgerError

#: How long a catalog is looked at that somebody may be about to replace; and while parts are moved.
_PATIENCE_S, _WHILE_PARTS_MOVE_S = 2.0, 600.0
_LOOK_S = 0.05
#: Faulty rows that are named one by one.
_NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that is no event, or not the only one of its id or its time: `value` is what stands in `field`."""

    writer: str
    seq: int
    kind: str
    fault: str
    value: str | None

    def __str__(self) -> str:
        return f"{self.writer}/{self.seq}: event {self.kind!r}: {self.fault}, got {self.value}"


def faulty_events(root: Path | str, limit: int = _NAMED_MAX) -> tuple[int, list[Fault]]:
    """How many faulty rows the ledger at `root` holds, and the first of them. Raises LedgerError."""
    with catalog.connect(root) as connection:
        (count,) = connection.execute("SELECT count(*) FROM faulty_event").fetchall()[0]
        select = "SELECT writer, seq, kind, fault, value FROM faulty_event ORDER BY ALL LIMIT ?"
        return count, [Fault(*row) for row in connection.execute(select, [limit]).fetchall()] if count else []


def faults(root: Path, seen: Seen) -> tuple[list[str], list[str]]:
    """What is wrong with the catalog of the ledger at `root`, and what is to be said of it that is no fault."""
    begun_s = time.monotonic()
    while True:
        # Before the look: what moves the parts makes the catalog new before it ends.
        patience_s = _WHILE_PARTS_MOVE_S if layout.parts_are_moving(root) else _PATIENCE_S
        try:
            path = root / layout.CATALOG
            kind = f"views {seen.facts(path, 'sha256', examine.sha256_of)} {catalog.made_of(root)}"
            problems, notes = seen.once(path, kind, lambda: catalog.faults(root))
        except (LedgerError, FileNotFoundError):
            # A damaged roll-up is named where it is looked at; a catalog that is missing is made by the next reader.
            return [], []
        except OSError as error:
            return [f"{layout.CATALOG}: it cannot be read ({error.strerror}); move away what lies there"], []
        # Somebody may have brought parts back, and be about to say so.
        late = all(any(f"view {name} " in problem for name in sources.names()) for problem in problems)
        if not problems or not late or time.monotonic() - begun_s > patience_s:
            way_out = "the next `rose` command that reads the ledger replaces it"
            edited = "it was edited, or made by another version"
            return (
                [f"{layout.CATALOG}: {problem}; {edited}; {way_out}" for problem in problems],
                [f"{layout.CATALOG}: {note}; {way_out}" for note in notes],
            )
        time.sleep(_LOOK_S)
