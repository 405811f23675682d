from __future__ import annotations

from pathlib import Path
from typing import get_args

import polars as pl
import pytest

from rose.pricing.closing import store
from rose.pricing.closing.records import postings
from rose.pricing.money import PricingError
from rose.pricing.spend import sums
from tests.pricing.conftest import WEEK_CLOSE_ID


def test_sums_of_postings_are_kept_once_and_sum_to_what_was_posted(half_closed: Path) -> None:
    root = half_closed / "ledger"
    posted = postings(root)[WEEK_CLOSE_ID]
    for posting in posted:
        for grain in get_args(sums.Grain):
            sums.of_posting(root, posting, grain)
    files = sorted((root / sums.FOLDER).iterdir())
    assert len(files) == 4
    before = [file.stat().st_mtime_ns for file in files]
    for posting in posted:
        for grain in ("hour", "day"):
            made = sums.of_posting(root, posting, grain)
            assert isinstance(made, Path)
            assert int(pl.read_parquet(made)["cost_nano"].sum()) == posting.cost_nano
    assert [file.stat().st_mtime_ns for file in files] == before


def test_sums_that_are_not_what_was_posted_are_made_again(half_closed: Path) -> None:
    root = half_closed / "ledger"
    posting = postings(root)[WEEK_CLOSE_ID][0]
    path = sums.of_posting(root, posting, "hour")
    assert isinstance(path, Path)
    whole = path.read_bytes()
    pl.read_parquet(path).head(1).write_parquet(path)
    assert sums.of_posting(root, posting, "hour") == path
    assert path.read_bytes() == whole
    # The same dollars, on serving what was idle.
    moved = pl.when(bucket="idle").then(pl.lit("serving")).otherwise("bucket").alias("bucket")
    pl.read_parquet(path).with_columns(moved).write_parquet(path)
    assert sums.of_posting(root, posting, "hour") == path
    assert path.read_bytes() == whole
    path.write_bytes(whole[:100])
    assert sums.of_posting(root, posting, "hour") == path
    assert path.read_bytes() == whole


def test_sums_are_made_of_frozen_rows_that_are_as_they_were(half_closed: Path) -> None:
    root = half_closed / "ledger"
    posting = postings(root)[WEEK_CLOSE_ID][0]
    frozen = store.folder(root, WEEK_CLOSE_ID) / posting.rows_file
    frozen.chmod(0o600)
    frozen.write_bytes(frozen.read_bytes()[:-1] + b"x")
    with pytest.raises(PricingError, match="was changed after it was frozen"):
        sums.of_posting(root, posting, "hour")


def test_where_the_folder_cannot_be_written_to_the_rows_are_given(half_closed: Path) -> None:
    root = half_closed / "ledger"
    (root / sums.FOLDER).write_text("in the way")
    made = sums.of_posting(root, postings(root)[WEEK_CLOSE_ID][0], "hour")
    assert isinstance(made, pl.DataFrame)
