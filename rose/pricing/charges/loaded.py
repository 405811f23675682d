"""The fully loaded view of charges: overhead and idle time on the work that they are for.

Sync, activation and transfer go to rollout, headroom to serving. Idle time and energy of a device in one pool, class
and UTC day are spread over its work in proportion to cost, by largest remainder; a device without work gives them to
its pool's purpose. `unaccounted` stays a row of its own. Sums to the same bill.
"""

from __future__ import annotations

import polars as pl

import sql
from rose.ledger import database

WORK: tuple[str, ...] = ("serving", "rollout", "train", "unaccounted")

#: Fates of lost rollout work. A rejected answer is not lost: the trainer learns from it.
WASTED_FATES: tuple[str, ...] = ("stale", "lost", "recomputed")

WASTED = (pl.col("bucket") == "rollout") & pl.col("fate").is_in(WASTED_FATES)

CAUSE = pl.when(WASTED).then(pl.col("cause")).otherwise(pl.lit("not wasted")).alias("cause")


def fully_load(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `Charges.frame` that carry cost in this view, with `work` (one of WORK) and `loaded_nano`.

    `loaded_nano` sums to the frame's `cost_nano` for each device and day.
    """
    with database.connect() as connection:
        connection.register("charge", frame)
        loaded: pl.DataFrame = connection.sql(sql.read("charges/90_fully_load.sql")).pl()
    return loaded
