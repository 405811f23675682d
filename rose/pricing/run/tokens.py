"""Rollout tokens by where they were made and what became of them.

A token counts once, on the engine that made it: generated = accepted + rejected + stale + lost + open. Useful tokens
are those that reached the trainer or still may: accepted, rejected and open. Stale and lost ones are waste.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import duckdb

from rose.pricing.query import rows, set_variables

FATES: tuple[str, ...] = ("accepted", "rejected", "stale", "lost", "open")
#: `borrowed`: made on serving devices; `dedicated`: on rollout or train devices; `unallocated`: on a device that the
#: ledger does not know, so that no price applies.
PLACEMENTS: tuple[str, ...] = ("borrowed", "dedicated", "unallocated")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens made in one placement, by fate."""

    by_fate: Mapping[str, int]

    @property
    def generated(self) -> int:
        return sum(self.by_fate.values())

    @property
    def wasted(self) -> int:
        return self.by_fate["stale"] + self.by_fate["lost"]

    @property
    def useful(self) -> int:
        return self.generated - self.wasted

    @property
    def wasted_share(self) -> Fraction | None:
        """w = wasted / generated; None where nothing was generated."""
        return Fraction(self.wasted, self.generated) if self.generated else None


def count(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Tokens]:
    """Tokens of each placement of a run."""
    set_variables(connection, run_id=run_id)
    counts = {(row["placement"], row["fate"]): int(row["tokens"]) for row in rows(connection, "run/token_fates")}
    return {placement: Tokens({fate: counts.get((placement, fate), 0) for fate in FATES}) for placement in PLACEMENTS}
