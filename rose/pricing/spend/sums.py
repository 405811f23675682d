"""Sums of what was posted to the books, kept so that a year is added up in a second.

Frozen charges never change, so their sums are made once: by hour for all but devices, and by UTC day for devices too.
They lie in `<ledger>/costs`, named after the frozen file's SHA-256. They can be removed at any time and are made again.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from rose.ledger import layout
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.records import Posting
from rose.pricing.money import PricingError

FOLDER = "costs"
Grain = Literal["hour", "day"]
#: What a row of sums is of; with the grain `day` also DEVICE_KEYS, and `hour` is then the first of the UTC day.
KEYS: tuple[str, ...] = ("hour", "run_id", "pool", "device_class", "team", "bucket", "policy_version", "task")
DEVICE_KEYS: tuple[str, ...] = ("device_id", "hardware_id")
AMOUNTS: tuple[str, ...] = ("ns", "tokens", "cost_nano")


def summed(frame: pl.DataFrame, grain: Grain) -> pl.DataFrame:
    """Charges, or rows of a correction, added up to KEYS and AMOUNTS."""
    keys: list[str | pl.Expr] = [*KEYS]
    if grain == "day":
        keys = [pl.col("hour").dt.truncate("1d"), *KEYS[1:], *DEVICE_KEYS]
    return frame.group_by(keys).agg(pl.col(name).sum() for name in AMOUNTS).sort("hour")


def frozen(root: Path, posting: Posting) -> pl.DataFrame:
    """The rows of a posting. Raises PricingError for a file that is not as it was frozen."""
    return charge_algebra.with_every_dimension(
        pl.read_parquet(io.BytesIO(store.content(root, posting, posting.rows_file)))
    )


def of_posting(root: Path, posting: Posting, grain: Grain) -> Path | pl.DataFrame:
    """The sums of a posting, made if there are none: the file, or the rows where the folder cannot be written to.

    Raises PricingError for frozen rows that are not those that were posted.
    """
    path = _path(root, posting, grain)
    if _is_whole(path, posting):
        return path
    rows = summed(frozen(root, posting), grain)
    made = int(rows["cost_nano"].sum())
    if made != posting.cost_nano:
        raise PricingError(
            f"{posting.close_id}: the rows of posting {posting.number} sum to {made} nano-dollars, and "
            f"{posting.cost_nano} were posted; `rose books verify` says what is wrong"
        )
    try:
        path.parent.mkdir(exist_ok=True)
        layout.write_file(path, store.parquet(rows))
    except OSError:
        return rows
    return path


def faults(root: Path, posted: Iterable[Posting]) -> Iterator[str]:
    """What is wrong with the sums that are kept, each row held against the frozen ones, naming the file.

    Nothing of frozen rows that are not as they were: whoever reads those says so.
    """
    for posting in posted:
        kept: dict[Grain, Path] = {grain: _path(root, posting, grain) for grain in get_args(Grain)}
        kept = {grain: path for grain, path in kept.items() if path.exists()}
        if not kept:
            continue
        try:
            rows = frozen(root, posting)
        except PricingError:
            continue
        for grain, path in kept.items():
            if not _has(path, summed(rows, grain)):
                yield f"{path} is not what posting {posting.number} of {posting.close_id} sums to; remove it"


def _path(root: Path, posting: Posting, grain: Grain) -> Path:
    sha256 = posting.files[posting.rows_file]
    return root / FOLDER / f"{posting.close_id}-{posting.number:04}-{sha256[:16]}.{grain}.parquet"


def _has(path: Path, rows: pl.DataFrame) -> bool:
    """Whether the file has these rows, in any order."""
    try:
        kept = pl.read_parquet(path, hive_partitioning=False)
    except (OSError, pl.exceptions.PolarsError):
        return False
    return kept.schema == rows.schema and kept.sort(rows.columns).equals(rows.sort(rows.columns))


def _is_whole(path: Path, posting: Posting) -> bool:
    """Whether the file is there and comes to what was posted in each bucket; how that is divided `faults` looks at."""
    if not path.exists():
        return False
    try:
        kept = pl.scan_parquet(path, hive_partitioning=False).group_by("bucket").agg(pl.col(AMOUNTS).sum()).collect()
    except (OSError, pl.exceptions.PolarsError):
        return False
    posted: dict[str, Counter[str]] = defaultdict(Counter)
    for total in posting.totals:
        posted[total["bucket"]].update({name: total[name] for name in AMOUNTS})
    return {row.pop("bucket"): row for row in kept.to_dicts()} == posted
