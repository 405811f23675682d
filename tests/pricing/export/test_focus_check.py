from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rose.pricing.closing.bill import Bill
from rose.pricing.export import focus, focus_check

COSTS = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")


@pytest.fixture(scope="module")
def good(close_bill: Bill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Purchases, usage of every kind, and a correction."""
    path = tmp_path_factory.mktemp("good") / "f.parquet"
    focus.write(close_bill, path)
    return path


@pytest.fixture
def spoil(good: Path, tmp_path: Path) -> Callable[..., tuple[list[focus_check.Fault], int]]:
    """Change the first row that `mask` holds of; returns the faults and the number of that row."""

    def spoiled(mask: pl.Expr, **values: Any) -> tuple[list[focus_check.Fault], int]:
        rows = pl.read_parquet(good)
        at = rows.select(mask.fill_null(False).arg_max()).item()
        return check(with_values(rows, at, values), tmp_path), at + 1

    return spoiled


def with_values(rows: pl.DataFrame, at: int, values: dict[str, Any]) -> pl.DataFrame:
    here = pl.int_range(rows.height) == at
    return rows.with_columns(
        pl.when(here).then(pl.lit(value, rows.schema[name])).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    )


def check(rows: pl.DataFrame, folder: Path, charges_nano: dict[str, int] | None = None) -> list[focus_check.Fault]:
    """The faults of rows; without `charges_nano` those that their own sums show."""
    path = folder / "f.parquet"
    rows.write_parquet(path)
    faults = focus_check.check(path, charges_nano or {}).faults
    return [fault for fault in faults if charges_nano or not fault.rule.startswith("x_CostBucket ") or fault.rows]


def named(faults: list[focus_check.Fault], row: int, column: str) -> bool:
    return any(row in fault.first and fault.rule.startswith(f"{column} ") for fault in faults)


USAGE = pl.col("CommitmentDiscountStatus") == "Used"
PURCHASE = pl.col("ChargeCategory") == "Purchase"
IDLE = pl.col("x_CostBucket") == "idle"
ENERGY = pl.col("x_CostBucket") == "energy"


def test_a_file_that_was_exported_is_good(good: Path, close_bill: Bill) -> None:
    report = focus_check.check(good, focus.charges_nano(close_bill))
    assert report.faults == ()
    assert report.rows == pl.read_parquet(good).height
    assert report.totals["billed"] == close_bill.total_nano


#: What no row may hold: of which rows, in which column, and the value.
WRONG: list[tuple[pl.Expr, str, str | None]] = [
    (USAGE, "ChargeCategory", "usage"),
    (USAGE, "ChargeClass", "Refund"),
    (PURCHASE, "ChargeFrequency", "Usage-Based"),
    (USAGE, "CommitmentDiscountStatus", "Partly"),
    (USAGE, "CommitmentDiscountCategory", "Spend"),
    (USAGE, "PricingCategory", "Standard"),
    (ENERGY, "PricingCategory", "Committed"),
    (USAGE, "ServiceCategory", "Compute"),
    (USAGE, "ServiceSubcategory", "Bots"),
    (USAGE, "BillingCurrency", "dollars"),
    (USAGE, "PricingUnit", "hours"),
    (USAGE, "x_Provenance", "guess"),
    (USAGE, "x_CostBucket", "coffee"),
    (USAGE, "BilledCost", None),
    (USAGE, "InvoiceIssuerName", None),
    (USAGE, "ListUnitPrice", None),
    (PURCHASE, "PricingQuantity", None),
    (USAGE, "SkuPriceId", None),
    (USAGE, "ChargePeriodStart", "2026-02-28 22:00:00"),
    (USAGE, "ChargePeriodStart", "2026-13-28T22:00:00Z"),
    (USAGE, "ChargePeriodEnd", "2026-02-28T21:00:00Z"),
    (USAGE, "ChargePeriodEnd", "2026-04-01T00:00:00Z"),
    (USAGE, "ChargePeriodStart", "2026-01-01T00:00:00Z"),
    (USAGE, "BillingPeriodEnd", "2026-01-01T00:00:00Z"),
    (USAGE, "CommitmentDiscountName", None),
    (USAGE, "ConsumedQuantity", None),
    (IDLE, "ConsumedQuantity", "1"),
    (USAGE, "ConsumedUnit", None),
    (PURCHASE, "CommitmentDiscountStatus", "Used"),
    (IDLE, "ResourceId", "s0"),
    (USAGE, "SubAccountName", None),
    (USAGE, "Tags", "team=research"),
    (USAGE, "Tags", '{"team": {"name": "research"}}'),
    (USAGE, "Tags", '["team"]'),
    (PURCHASE, "EffectiveCost", "0.000000001"),
    (USAGE, "BilledCost", "0.000000001"),
    (ENERGY, "BilledCost", "0.000000001"),
    (USAGE, "EffectiveCost", "-1"),
    (PURCHASE, "BilledCost", "-1"),
    (USAGE, "ListUnitPrice", "-1"),
    (USAGE, "PricingQuantity", "-1"),
    (USAGE, "ContractedUnitPrice", "9"),
    (USAGE, "x_EffectiveUnitPrice", None),
    (USAGE, "x_EffectiveUnitPrice", "9"),
    (USAGE, "x_EffectiveUnitPrice", "-1"),
]


def test_wrong_cells_are_found_and_named_each_in_its_row(good: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(good)
    spoiled: list[tuple[int, str, str | None]] = []
    for mask, column, value in WRONG:
        free = rows.select((mask & pl.col("ChargeClass").is_null()).fill_null(False).arg_true()).to_series().to_list()
        at = next(at for at in free if at not in {taken for taken, _, _ in spoiled})
        rows = with_values(rows, at, {column: None if value is None else cell(column, value)})
        spoiled.append((at, column, value))
    faults = check(rows, tmp_path)
    assert [what for what in spoiled if not named(faults, what[0] + 1, what[1])] == []


def cell(column: str, value: str) -> Any:
    return Decimal(value) if column in COSTS or column.endswith(("Quantity", "UnitPrice")) else value


def test_what_another_is_paid_for_is_not_billed(spoil: Any) -> None:
    faults, row = spoil(PURCHASE, ProviderName="somebody else")
    assert named(faults, row, "BilledCost")


@pytest.mark.parametrize(("mask", "column"), [(USAGE, "EffectiveCost"), (PURCHASE, "BilledCost"), (ENERGY, "ListCost")])
def test_a_doubled_cost_is_found_and_named(spoil: Any, good: Path, mask: pl.Expr, column: str) -> None:
    rows = pl.read_parquet(good)
    cost = rows.row(rows.select(mask.fill_null(False).arg_max()).item(), named=True)[column]
    faults, row = spoil(mask, **{column: 2 * cost})
    assert named(faults, row, column), (row, faults)


def test_a_row_that_is_there_twice_is_found(good: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(good)
    for at in (0, 7, rows.height - 1):
        again = rows[at : at + 1].with_columns(pl.col("ChargeDescription") + " again")
        assert any(
            fault.rule == f"charges for the same as row {at + 1}" and fault.first == (rows.height + 1,)
            for fault in check(pl.concat([rows, again]), tmp_path)
        )


def test_a_row_that_is_gone_is_found(good: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(good)
    kept = rows.filter(pl.int_range(pl.len()) != rows.select(USAGE.fill_null(False).arg_max()).item())
    (fault,) = check(kept, tmp_path)
    assert "was purchased for" in fault.rule


def test_a_cost_moved_between_buckets_is_found_by_the_charges(good: Path, close_bill: Bill, tmp_path: Path) -> None:
    rows = pl.read_parquet(good)
    serving = rows.select((pl.col("x_CostBucket") == "serving").fill_null(False).arg_max()).item()
    moved = with_values(rows, serving, {"x_CostBucket": "headroom"})
    assert check(moved, tmp_path) == []
    faults = check(moved, tmp_path, focus.charges_nano(close_bill))
    assert {fault.rule.split()[1] for fault in faults} == {"serving", "headroom"}


def test_a_fault_says_where_and_what(spoil: Any) -> None:
    faults, row = spoil(USAGE, ChargeFrequency="Weekly")
    assert [str(fault) for fault in faults] == [
        f"row {row}: ChargeFrequency must be Recurring for a Purchase, Usage-Based for Usage (row {row} has Weekly)"
    ]
