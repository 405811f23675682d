"""A ledger that is opened once, for everybody who reads it."""

from functools import cached_property
from pathlib import Path

from rose.ledger.files import catalog, layout
from rose.ledger.files.examine import Seen


class Ledger:
    """A ledger's folder and what this process has verified of it. With `allow_unverified` a ledger that does not verify
    is priced too, and its figures are marked. Raises LedgerError if `folder` is no ledger."""

    def __init__(self, folder: Path | str, *, allow_unverified: bool = False) -> None:
        self.folder = layout.check(folder)
        self.allow_unverified = allow_unverified
        #: Files that were verified, so that the next verification reads new files only.
        self.seen = Seen()

    @cached_property
    def id(self) -> str:
        return layout.ledger_id(self.folder)

    def connect(self) -> catalog.Connection:
        """Return a connection that reads the ledger as it is now; see `catalog.connect`."""
        return catalog.connect(self.folder)
