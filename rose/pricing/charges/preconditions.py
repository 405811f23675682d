"""Checks before pricing: the hash chain is intact, and no event was archived."""

from contextlib import suppress

import duckdb

from rose.clock import utc
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing.money import PricingError
from rose.pricing.query import rows, set_variables


def verified(ledger: Ledger) -> bool:
    """Return whether the ledger verifies. Raises PricingError if not, unless unverified reading is allowed."""
    with suppress(LedgerError):  # A reader writes the catalog of an earlier version anew; damage is named below.
        ledger.connect().close()
    problems = ledger.doubts
    if problems and not ledger.allow_unverified:
        raise PricingError(
            f"ledger {ledger.folder} does not verify, so its figures cannot be trusted:\n"
            + "\n".join(f"  {problem}" for problem in problems[:10])
            + "\n`--allow-unverified` gives figures that are marked so."
        )
    return not problems


def refuse_archived(ledger: Ledger, connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    newest_us = ledger.archived_until_us
    if newest_us is None:
        return
    set_variables(connection, run_id=run_id)
    runs = {run_id}
    for row in rows(connection, "run/fleets"):
        # Fleet events from before the RL run began do not count for it.
        if row["run_id"] != run_id or rows(connection, "run/facts")[0]["began_ns"] <= newest_us * 1000:
            runs |= {row["run_id"], row["fleet_run_id"]}
    gone = 0
    for name in runs:
        set_variables(connection, run_id=name, archived_us=newest_us)
        gone += max(0, int(rows(connection, "run/archived")[0]["events"] or 0))
    if gone > 0:
        raise PricingError(
            f"{gone:,} events of run {run_id!r} were archived, so its figures would be incomplete: bring them "
            "back with `rose ledger restore --from ...`"
        )


def refuse_archived_since(ledger: Ledger, from_ns: int | None) -> None:
    newest_us = ledger.archived_until_us
    if newest_us is not None and (from_ns is None or from_ns <= newest_us * 1000):
        raise PricingError(
            f"events up to {utc(newest_us * 1000)} were archived, so a period that begins before can only be priced "
            "in part: begin it later, or bring them back with `rose ledger restore --from ...`"
        )
