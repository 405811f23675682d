"""Whether a team is one that the ledger knows: a name that is misspelt costs nothing, and no error says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rose.errors import did_you_mean
from rose.ledger import catalog
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.query import rows


def warnings(root: Path, teams: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each of `teams` that no run of the ledger names. Raises LedgerError."""
    with catalog.connect(root) as connection:
        known = {str(row["team"]) for row in rows(connection, "spend/teams") if row["team"]}
    for team in sorted({*teams} - known - {UNALLOCATED}):
        yield f"no run of the ledger has the tag team {team!r}{did_you_mean(team, known)}"
