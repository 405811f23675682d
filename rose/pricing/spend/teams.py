"""Whether a team is one that the ledger knows: a name that is misspelt costs nothing, and no error says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rose.errors import did_you_mean
from rose.ledger import catalog
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows


def named_by(book: PriceBook) -> set[str]:
    """The teams that get a shared cost or a credit of the book."""
    shared = {team for cost in book.shared_cost for team in cost.shares or ()}
    return shared | {credit.team for credit in book.credit if credit.team is not None}


def warnings(root: Path, teams: Iterable[str], book: PriceBook | None = None) -> Iterator[str]:
    """Of each of `teams` that no run of the ledger names, and no device tag of the book. Raises LedgerError."""
    with catalog.connect(root) as connection:
        known = {str(row["team"]) for row in rows(connection, "spend/teams") if row["team"]}
    known |= {tag.tags["team"] for tag in (book.device_tag if book else ()) if "team" in tag.tags}
    for team in sorted({*teams} - known - {UNALLOCATED}):
        yield f"no run of the ledger has the tag team {team!r}{did_you_mean(team, known)}"
