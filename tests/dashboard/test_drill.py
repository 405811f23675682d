from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import polars as pl
import pytest

from dashboard import drill
from rose.pricing import charges
from rose.pricing.closing.bill import bill
from rose.pricing.closing.period import of_month
from rose.pricing.price_books import pricebook


def nano(cells: pl.Series) -> list[int]:
    return [int(cell) for cell in cells]


@pytest.fixture(scope="module")
def frame(ended: Path) -> pl.DataFrame:
    return charges.price(ended, pricebook.load("example")).frame


@pytest.mark.parametrize("by", ["team", "run", "device-class", "policy-version", "task", "fate", "bucket", "work"])
def test_rows_re_add_to_the_whole_in_both_views(frame: pl.DataFrame, by: str) -> None:
    bill_nano = int(frame["cost_nano"].sum())
    for view, rows in (("amortized", frame), ("fully-loaded", charges.fully_load(frame))):
        if by == "work" and view == "amortized":
            continue
        table = drill.table(rows, [by], view)
        *parts, whole = nano(table["nano-dollars"])
        assert sum(table["cost"][:-1]) == pytest.approx(whole / 1e9)
        assert sum(parts) == whole == bill_nano
        assert table[by.replace("-", " ")][-1] == "sum"
        assert table["share"][-1] == 1
        assert ("device-hours" in table.columns) == (view == "amortized")


def test_who_pays_is_by_the_tags_and_what_nobody_pays_is_said_to_be_nothing(frame: pl.DataFrame) -> None:
    table = drill.table(frame, ["team"], "amortized", always="unallocated")
    paid = dict(zip(table["team"], nano(table["nano-dollars"]), strict=True))
    serving = pl.col("bucket").is_in(["serving", "headroom", "idle", "unaccounted", "energy"])
    assert paid["chat"] == frame.filter(serving, pl.col("pool") == "serving")["cost_nano"].sum()
    assert paid["unallocated"] == 0
    assert paid["research"] == paid["sum"] - paid["chat"]


def test_waste_and_idle_sum_to_their_buckets(frame: pl.DataFrame) -> None:
    waste, idle = drill.waste(frame), drill.idle(frame)
    assert nano(waste["nano-dollars"])[-1] == frame.filter(pl.col("bucket") == "rollout")["cost_nano"].sum()
    assert set(waste["cause"]) == {"not wasted", "preempted", "sum"}
    spare = frame.filter(pl.col("bucket").is_in(["idle", "unaccounted"]))
    assert nano(idle["nano-dollars"])[-1] == spare["cost_nano"].sum()
    could = dict(zip(idle["cause"], idle["pool"], strict=True))["could have been lent"]
    assert could == "serving"


def test_what_is_billed_beside_device_time_has_its_quantities(frame: pl.DataFrame) -> None:
    table = drill.invoiced(frame)
    by_kind = {row["kind"]: row for row in table.to_dicts()}
    # Eight syncs of 2 MB; s0 drew 500 W for four minutes, at PUE 1.25 and $0.10/kWh.
    assert (by_kind["transfer"]["route"], by_kind["transfer"]["GB"]) == ("inter-region", 0.016)
    assert by_kind["transfer"]["nano-dollars"] == 320_000
    assert by_kind["energy"]["kWh"] == pytest.approx(0.5 * 240 / 3600)
    assert by_kind["sum"]["GB"] == 0.016
    assert by_kind["sum"]["nano-dollars"] == 320_000 + 4_166_667
    assert (by_kind["transfer"]["kWh"], by_kind["energy"]["GB"]) == (None, None)
    assert drill.invoiced(frame.filter(pl.col("kind") == "capacity")).height == 1


def test_what_was_not_metered_is_not_0_kwh(frame: pl.DataFrame) -> None:
    table = drill.invoiced(frame.filter(pl.col("kind") != "energy"))
    assert table["kWh"].to_list() == [None, None]
    assert table["GB"].to_list() == [0.016, 0.016]


def test_days_and_months_sum_to_the_bill(frame: pl.DataFrame) -> None:
    for monthly, name in ((False, "2026-06-01"), (True, "2026-06")):
        by_day = drill.by_day(frame, "bucket", "amortized", monthly=monthly)
        assert set(by_day["day"]) == {name}
        assert by_day["nano"].sum() == frame["cost_nano"].sum()
        assert by_day["usd"].sum() == pytest.approx(frame["cost_nano"].sum() / 1e9)


def test_the_csv_has_every_charge_to_the_nano_dollar(ended: Path, frame: pl.DataFrame) -> None:
    rows = list(csv.DictReader(io.StringIO(drill.csv(bill(ended, of_month("2026-06"), pricebook.load("example"))))))
    assert sum(int(row["cost_nano"]) for row in rows) == frame["cost_nano"].sum()
    assert len(rows) == frame.height
    assert {(row["currency"], row["view"], row["provenance"], row["verified"]) for row in rows} == {
        ("USD", "amortized", "simulated", "true")
    }


def test_no_spreadsheet_takes_a_team_for_a_formula(ended: Path) -> None:
    charged = bill(ended, of_month("2026-06"), pricebook.load("example"))
    for name, shown in (("=1+1", "'=1+1"), (" @a", "' @a"), ("-", "'-"), ("a-b", "a-b")):
        named = dataclasses.replace(charged, frame=charged.frame.with_columns(team=pl.lit(name)))
        assert {row["team"] for row in csv.DictReader(io.StringIO(drill.csv(named)))} == {shown}
