"""The fully loaded view of charges: everything that is not work, charged to the work it is there for.

Sync, activation and transfer go to rollout (they exist for rollouts only), headroom to serving (it is kept for
serving's sake). Idle time and energy of a device, in one pool and class, and UTC day are then spread over what it did
in proportion to its cost by largest remainder; a device that did nothing gives them to what its pool is for.
`unaccounted` stays a row of its own: nobody knows whose it is. Sums to the same bill.
"""

from __future__ import annotations

import polars as pl

import sql
from rose.ledger import database

#: What fully loaded cost goes to.
WORK: tuple[str, ...] = ("serving", "rollout", "train", "unaccounted")

#: Fates of rollout work that came to nothing. A rejected answer is none: the trainer learns from it.
WASTED_FATES: tuple[str, ...] = ("stale", "lost", "recomputed")

#: Rows of `Charges.frame` that were wasted.
WASTED = (pl.col("bucket") == "rollout") & pl.col("fate").is_in(WASTED_FATES)

#: Why a row of rollout time was wasted, or that it was not.
CAUSE = pl.when(WASTED).then(pl.col("cause")).otherwise(pl.lit("not wasted")).alias("cause")


def fully_load(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of `Charges.frame` that carry cost in this view, with `work` (one of WORK) and `loaded_nano`.

    `loaded_nano` sums to the `cost_nano` of the frame, for each device and day. Rows that were spread are left out.
    """
    with database.connect() as connection:
        connection.register("charge", frame)
        loaded: pl.DataFrame = connection.sql(sql.read("charges/90_fully_load.sql")).pl()
    return loaded
