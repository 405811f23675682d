"""A ledger that is opened once, for all its readers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rose.ledger.files import layout

if TYPE_CHECKING:  # DuckDB and Arrow, which the command line loads only to read a ledger.
    from rose.ledger.files.catalog import Connection
    from rose.ledger.files.examine import Seen


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

    def connect(self) -> Connection:
        """Return a connection that reads the ledger as it is now; see `catalog.connect`."""
        from rose.ledger.files import catalog

        return catalog.connect(self.folder)
