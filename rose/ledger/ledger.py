"""A ledger that is opened once, for all its readers."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.ledger.files import layout

if TYPE_CHECKING:  # DuckDB and Arrow, which the command line loads only to read a ledger.
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from rose.ledger.files.catalog import Connection
    from rose.ledger.files.examine import Seen
    from rose.ledger.files.rolled import Coverage
    from rose.ledger.verify import Report


class Ledger:
    """A ledger's folder and the findings in its files. `allow_unverified`: doubtful figures are marked, not refused."""

    def __init__(self, folder: Path | str, *, allow_unverified: bool = False) -> None:
        self.folder = layout.check(folder)
        self.allow_unverified = allow_unverified

    @classmethod
    def create(cls, folder: Path | str) -> Ledger:
        """Return the ledger at `folder`, created if it is missing. Raises LedgerError if the folder has other files."""
        return cls(layout.create(folder))

    @cached_property
    def id(self) -> str:
        return layout.ledger_id(self.folder)

    @cached_property
    def seen(self) -> Seen:
        """Return the findings in each file. They let the next verification skip unchanged files."""
        from rose.ledger.files.examine import Seen

        return Seen()

    @property
    def doubts(self) -> list[str]:
        """Return what is wrong or could not be checked. Only files that are new or changed are read for this."""
        return self.verify().doubts

    @property
    def parts(self) -> dict[str, list[layout.Part]]:
        return {writer: layout.parts(self.folder, writer) for writer in layout.writers(self.folder)}

    @property
    def writer_order(self) -> str:
        """Return a SELECT of the writers and their order in the registry."""
        from rose.ledger.files import sources

        return sources.writer_order(self.folder, layout.writers(self.folder))

    @property
    def coverage(self) -> Coverage | None:
        """Return how far the newest daily sums reach, or None without any. Raises LedgerError if they are damaged."""
        from rose.ledger.files import rolled

        return rolled.newest(self.folder)

    @property
    def archived_until_us(self) -> int | None:
        """Return `at_us` of the newest archived event that left the ledger, or None."""
        manifests = (layout.read_manifest(self.folder, part)[0] for part in layout.archived_parts(self.folder))
        return max((at_us for manifest in manifests if (at_us := manifest["at_us_max"]) is not None), default=None)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Return the exclusive lock `name` of this ledger. Raises LockError if the file system refuses locks."""
        return layout.locked(layout.lock_file(self.folder, name))

    def record_in_books(self, action: str, detail: Mapping[str, Any], at_us: int, event_id: str | None = None) -> None:
        """Write an event of price books, budgets or closes to disk. The caller must hold the lock named "closing"."""
        from rose.events import LedgerAction
        from rose.ledger.writer import LedgerWriter

        event = LedgerAction(action=action, at_us=at_us, event_id=event_id, detail_json=json.dumps(detail))
        with LedgerWriter.open(self.folder, layout.CLOSING_WRITER, layout.UPKEEP_RUN_ID) as log:
            log.record(event)

    def book_details(self, action: str) -> list[dict[str, Any]]:
        """Return the details of each event with this action about price books, budgets and closes, in order."""
        from rose.ledger.files import examine

        return examine.recorded(self.folder, layout.CLOSING_WRITER, action)

    def connect(self) -> Connection:
        from rose.ledger.files import catalog

        return catalog.connect(self.folder)

    def verify(self, *, marks: Mapping[str, Sequence[int]] | None = None) -> Report:
        from rose.ledger.verify import verify

        return verify(self.folder, self.seen, marks or {})

    def verify_changed(self) -> Report:
        """Verify the ledger, but read only files that are new or changed since any process's last verification."""
        from rose.ledger import verified

        self.seen = verified.load(self.folder)
        report = self.verify()
        verified.save(self.folder, self.seen)
        return report
