"""What a fleet does to its ledger by itself: the jobs of `rose jobs serve` that its file asks for."""

from __future__ import annotations

from rose.config import FleetConfig
from rose.ledger.growth import archive
from rose.ledger.growth.store import Store
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.jobs import Job
from rose.runtime.errors import FolderError
from rose.runtime.service import places


def ledger_jobs(config: FleetConfig) -> list[Job]:
    """The jobs of the first host's ledger."""
    settings = jobs.Settings(
        archive_to=config.archive.to,
        archive_after_days=config.archive.after_days,
        archive_delete=config.archive.delete,
    )
    return jobs.ledger_jobs(settings)


def check_archive(config: FleetConfig) -> None:
    """Raises FolderError if nothing can be archived to where `archive.to` says, as far as that shows from here."""
    if config.archive.to is not None:
        try:
            archive.outside(Store(config.archive.to), places.ledger(config))
        except LedgerError as error:
            raise FolderError(f"archive.to {config.archive.to!r}: {error}") from None
