"""A ledger that is opened once, for all its readers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.ledger.files import layout

if TYPE_CHECKING:  # DuckDB and Arrow, which the command line loads only to read a ledger.
    from collections.abc import Mapping, Sequence

    from rose.ledger.files.catalog import Connection
    from rose.ledger.files.examine import Seen
    from rose.ledger.verify import Report


class Ledger:
    """A ledger's folder, and what this process found in its files. Raises LedgerError if `folder` is no ledger.

    With `allow_unverified`, a ledger that does not verify still shows its figures, with a mark."""

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
        """Return the findings about verified files, which the next verification does not read again."""
        from rose.ledger.files.examine import Seen

        return Seen()

    @property
    def doubts(self) -> list[str]:
        """Return what is wrong or could not be checked, after reading the files that are new or changed."""
        return self.verify().doubts

    @property
    def book_events(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the action and details of each event of the books, in order."""
        from rose.ledger.files import examine

        return examine.all_recorded(self.folder, layout.CLOSING_WRITER)

    @property
    def archived_until_us(self) -> int | None:
        """Return `at_us` of the newest archived event that left the ledger, or None."""
        return layout.archived_until_us(self.folder)

    def connect(self) -> Connection:
        """Return a connection that reads the ledger as it is now; see `catalog.connect`."""
        from rose.ledger.files import catalog

        return catalog.connect(self.folder)

    def verify(self, *, marks: Mapping[str, Sequence[int]] | None = None) -> Report:
        """Check the ledger as `rose.ledger.verify` does."""
        from rose.ledger.verify import verify

        return verify(self.folder, self.seen, marks or {})

    def verify_changed(self) -> Report:
        """Verify the ledger, but read only files that are new or changed since any process's last verification."""
        from rose.ledger import verified

        self.seen = verified.load(self.folder)
        report = self.verify()
        verified.save(self.folder, self.seen)
        return report
