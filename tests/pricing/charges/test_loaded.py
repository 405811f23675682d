from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges import WORK, fully_load
from rose.pricing.price_books.pricebook import load

BUCKETS = ("serving", "rollout", "train", "sync", "activation", "headroom", "idle", "unaccounted", "transfer", "energy")


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    plain = {"hour": datetime(2026, 6, 1), "run_id": "r", "fleet_run_id": "r", "provenance": "replay"}
    plain |= {"device_id": "d", "pool": "serving", "device_class": "h100-sxm"}
    kinds = {"transfer": "transfer", "energy": "energy"}
    filled = [plain | {"kind": kinds.get(row["bucket"], "capacity")} | row for row in rows]
    return pl.DataFrame(filled, schema_overrides={"cost_nano": pl.Int64}, infer_schema_length=None)


def by_work(loaded: pl.DataFrame) -> dict[str, int]:
    return dict(loaded.group_by("work").agg(pl.col("loaded_nano").sum()).iter_rows())


def test_overhead_goes_to_the_work_it_is_there_for_and_idle_in_proportion() -> None:
    costs = {"serving": 60, "headroom": 30, "rollout": 5, "sync": 3, "activation": 2}
    costs |= {"idle": 100, "transfer": 7, "unaccounted": 11, "energy": 10}
    loaded = fully_load(frame([{"bucket": bucket, "cost_nano": nano} for bucket, nano in costs.items()]))
    # 90 of serving's and 10 of rollout's share 110; transfer is rollout's and weighs nothing.
    assert by_work(loaded) == {"serving": 90 + 99, "rollout": 10 + 11 + 7, "unaccounted": 11}


def test_the_idle_of_a_device_that_did_nothing_goes_to_what_its_pool_is_for() -> None:
    rows = [{"bucket": "idle", "cost_nano": 7, "pool": "rollout"}, {"bucket": "unaccounted", "cost_nano": 1}]
    assert by_work(fully_load(frame(rows))) == {"rollout": 7, "unaccounted": 1}


def test_the_sample_s_views_have_the_same_total_day_by_day(sample_kept: Path) -> None:
    result = charges.price(Ledger(sample_kept), load("example"))
    loaded = fully_load(result.frame)
    assert loaded["loaded_nano"].sum() == result.total_nano
    assert set(loaded["work"]) <= set(WORK)
    assert loaded.columns == [*result.frame.columns, "work", "loaded_nano"]


HOURS = [datetime(2026, 6, 1, 5), datetime(2026, 6, 1, 6), datetime(2026, 6, 2)]
ROW: Any = {"bucket": st.sampled_from(BUCKETS), "cost_nano": st.just(0) | st.integers(0, 10**13)}
ROW |= {"device_id": st.sampled_from(["a", "b"]), "hour": st.sampled_from(HOURS), "pool": st.just("train")}


@settings(max_examples=10)
@given(st.lists(st.fixed_dictionaries(ROW), min_size=1, max_size=12))
def test_spreading_keeps_every_device_s_day_exactly(rows: list[dict[str, Any]]) -> None:
    given_rows = frame(rows)
    loaded = fully_load(given_rows)
    day = [pl.col("device_id"), pl.col("hour").dt.date().alias("day")]
    before = given_rows.group_by(day).agg(pl.col("cost_nano").sum().alias("nano")).sort("device_id", "day")
    after = loaded.group_by(day).agg(pl.col("loaded_nano").sum().alias("nano")).sort("device_id", "day")
    # A device-day of nothing but zero may lose its rows, never a nano-dollar.
    nothing = pl.col("nano") == 0
    assert after.filter(~nothing).equals(before.filter(~nothing))
    assert loaded["loaded_nano"].min() is None or loaded["loaded_nano"].min() >= 0
