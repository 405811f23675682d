"""Checks the definitions in a ledger's catalog, and lists rows that are not valid events."""

import time
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.files import catalog, examine, layout, sources
from rose.ledger.files.examine import Seen
from rose.ledger.files.layout import LedgerError

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


def faults(root: Path, seen: Seen) -> tuple[list[str], list[str]]:
    begun_s = time.monotonic()
    while True:
        retry_s = _WHILE_PARTS_MOVE_S if layout.parts_are_moving(root) else _RETRY_S
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
        late = all(any(f"view {name} " in problem for name in sources.of_nothing()) for problem in problems)
        if not problems or not late or time.monotonic() - begun_s > retry_s:
            way_out = "the next `rose` command that reads the ledger replaces it"
            edited = "it was edited, or made by another version"
            return (
                [f"{layout.CATALOG}: {problem}; {edited}; {way_out}" for problem in problems],
                [f"{layout.CATALOG}: {note}; {way_out}" for note in notes],
            )
        time.sleep(_LOOK_S)
