"""What waste is: one definition for every surface."""

from __future__ import annotations

import polars as pl

#: Fates of rollout work that came to nothing. A rejected answer is none: the trainer learns from it.
WASTED_FATES: tuple[str, ...] = ("stale", "lost", "recomputed")

#: Rows of `Charges.frame` that were wasted.
WASTED = (pl.col("bucket") == "rollout") & pl.col("fate").is_in(WASTED_FATES)

#: Why a row of rollout time was wasted, or that it was not.
CAUSE = pl.when(WASTED).then(pl.col("cause")).otherwise(pl.lit("not wasted")).alias("cause")
