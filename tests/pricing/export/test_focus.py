import dataclasses
import json
import shutil
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from rose.ledger.ledger import Ledger
from rose.pricing.closing import close as closing
from rose.pricing.closing.bill import Bill, bill, of_run
from rose.pricing.export import focus
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.pricing.any_ledger import BOOK as ANY_BOOK
from tests.pricing.any_ledger import on_any_ledger, root_of
from tests.pricing.export import focus_validator
from tests.pricing.export.conftest import HOUR_NS, PERIOD, RUN, whole_bill
from tests.pricing.export.test_workbook import check_sums, with_rows
from tests.pricing.recorded import Made

NANO = Decimal("0.000000001")


@pytest.fixture(scope="module")
def rows(period_bill: Bill, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    path = tmp_path_factory.mktemp("focus") / "rows.parquet"
    focus.write(period_bill, path)
    return pl.read_parquet(path)


def test_sums_are_those_of_the_charges_to_the_nano_dollar(rows: pl.DataFrame, period_bill: Bill) -> None:
    assert rows["BilledCost"].sum() == rows["EffectiveCost"].sum() == period_bill.total_nano * NANO
    usage = rows.filter(pl.col("ChargeCategory") == "Usage")
    by_bucket = dict(usage.group_by("x_CostBucket").agg(pl.col("EffectiveCost").sum()).iter_rows())
    assert by_bucket == {bucket: nano * NANO for bucket, nano in focus.charges_nano(period_bill).items()}
    of_the_fleet = usage.filter(pl.col("CommitmentDiscountStatus").is_in(["Used", "Unused"]))
    purchased = rows.filter(pl.col("ChargeCategory") == "Purchase")["BilledCost"].sum()
    assert of_the_fleet["EffectiveCost"].sum() == purchased > 0


def test_every_amount_is_a_decimal_of_twelve_places(rows: pl.DataFrame) -> None:
    decimals = {name for name, kind in rows.schema.items() if kind == pl.Decimal(38, 12)}
    assert decimals == {name for name in rows.columns if name.endswith(("Cost", "Quantity", "UnitPrice"))}
    assert {str(rows.schema[name]) for name in set(rows.columns) - decimals} == {"String", "Int64"}
    custom = [name.startswith("x_") for name in rows.columns]
    assert custom == sorted(custom)


def test_an_hour_of_the_fleet_is_purchased_once(rows: pl.DataFrame) -> None:
    # Two classes, one of them with a price of its own in one pool after midnight.
    bought = rows.filter(pl.col("ChargeCategory") == "Purchase", pl.col("ChargePeriodStart") == "2026-02-28T23:00:00Z")
    owned = bought.row(by_predicate=pl.col("SkuId") == "device/owned", named=True)
    assert bought.height == 2
    assert owned["BilledCost"] == Decimal("3.400000002")
    assert owned["EffectiveCost"] == 0
    assert owned["CommitmentDiscountQuantity"] == 2
    assert owned["ListUnitPrice"] == Decimal("1.700000001")
    assert owned["CommitmentDiscountId"] == owned["ResourceId"] == "rose/fleet/owned/3 years"
    after = rows.filter(pl.col("ChargeCategory") == "Purchase", pl.col("ChargePeriodStart") == "2026-03-01T00:00:00Z")
    for name in ("ListUnitPrice", "ContractedUnitPrice"):
        assert rows[name].equals(rows["x_EffectiveUnitPrice"])
    assert set(after["x_EffectiveUnitPrice"]) == {Decimal("2.35"), Decimal("0.777777777777"), Decimal("3.3")}


def test_rows_of_each_kind_say_what_they_are(rows: pl.DataFrame) -> None:
    by_bucket = {row["x_CostBucket"]: row for row in rows.iter_rows(named=True)}
    rollout = by_bucket["rollout"]
    assert (rollout["CommitmentDiscountStatus"], rollout["PricingCategory"]) == ("Used", "Committed")
    assert rollout["ConsumedQuantity"] == rollout["PricingQuantity"] > 0
    assert (rollout["ResourceId"], rollout["ResourceName"]) == (f"{RUN}/s0", "s0")
    assert (by_bucket["idle"]["CommitmentDiscountStatus"], by_bucket["idle"]["ConsumedQuantity"]) == ("Unused", None)
    assert by_bucket["unaccounted"]["CommitmentDiscountStatus"] == "Unused"
    for bucket, unit in (("transfer", "GB"), ("energy", "kWh")):
        row = by_bucket[bucket]
        assert (row["PricingCategory"], row["CommitmentDiscountId"], row["PricingUnit"]) == ("Standard", None, unit)
        assert row["BilledCost"] == row["EffectiveCost"]
    assert by_bucket["energy"]["ConsumedQuantity"] == Decimal("0.333333")


def test_tags_and_teams_are_the_run_s(rows: pl.DataFrame) -> None:
    row = next(row for row in rows.iter_rows(named=True) if '"rose/cause":"rejected"' in row["Tags"])
    tags = json.loads(row["Tags"])
    assert tags["project"] == 'a "maze", <b>'
    assert (tags["rose/device"], tags["rose/task"], tags["rose/fate"]) == ("s0", "maze", "rejected")
    assert row["SubAccountId"] == "research"
    assert row["x_LeaseId"].startswith("L")
    assert row["x_LedgerSeq"].startswith("test:")
    assert rows.filter(pl.col("x_CostBucket") == "serving")["SubAccountId"].unique().to_list() == ["chat"]


def test_marginal_cost_is_known_of_a_whole_run_and_sums_to_the_report_s(sample_kept: Path, tmp_path: Path) -> None:
    bill = of_run(Ledger(sample_kept), "run", pricebook.load("example"))
    focus.write(bill, tmp_path / "f.parquet")
    rows = pl.read_parquet(tmp_path / "f.parquet")
    assert bill.marginal_nano is not None
    assert rows["x_MarginalCost"].sum() == bill.marginal_nano * NANO > 0
    assert rows.filter(pl.col("x_MarginalCost").is_not_null())["x_CostBucket"].unique().to_list() == ["rollout"]
    # A team that is not known is no account.
    assert bill.frame["team"].unique().to_list() == ["unallocated"]
    assert rows["SubAccountId"].null_count() == rows.height
    focus.write(dataclasses.replace(bill, marginal_nano=-7), tmp_path / "g.parquet")
    assert pl.read_parquet(tmp_path / "g.parquet")["x_MarginalCost"].sum() == -7 * NANO


def test_a_close_is_an_invoice_and_its_correction_another(close_bill: Bill, tmp_path: Path) -> None:
    done = focus.write(close_bill, tmp_path / "f.parquet")
    rows = pl.read_parquet(tmp_path / "f.parquet")
    (correction,) = close_bill.corrections
    assert dict(rows.group_by("InvoiceId").agg(pl.col("BilledCost").sum()).iter_rows()) == {
        close_bill.close_id: close_bill.charges[0].total_nano * NANO,
        f"{close_bill.close_id}/1": correction.total_nano * NANO,
    }
    assert correction.total_nano > 0
    changed = rows.filter(pl.col("ChargeClass") == "Correction")
    assert changed["InvoiceId"].unique().to_list() == [f"{close_bill.close_id}/1"]
    # At the hour that was charged, billed in the month in which it was posted.
    assert changed["ChargePeriodStart"].str.slice(0, 10).unique().to_list() == ["2026-03-01"]
    assert set(changed["BillingPeriodStart"]) != set(rows.filter(pl.col("ChargeClass").is_null())["BillingPeriodStart"])
    assert done.totals["billed"] == close_bill.total_nano


def test_the_same_bill_is_the_same_bytes(close_bill: Bill, tmp_path: Path) -> None:
    for suffix in focus.SUFFIXES:
        first = focus.write(close_bill, tmp_path / f"a{suffix}")
        assert first.sha256 == focus.write(close_bill, tmp_path / f"b{suffix}").sha256
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_a_csv_has_the_rows_of_the_parquet_file(period_bill: Bill, rows: pl.DataFrame, tmp_path: Path) -> None:
    focus.write(period_bill, tmp_path / "f.csv")
    read = pl.read_csv(tmp_path / "f.csv", schema_overrides=dict.fromkeys(rows.columns, pl.String))
    assert read["BilledCost"].str.contains(r"^-?\d+\.\d{12}$").all()
    assert read.with_columns(pl.col(name).cast(kind) for name, kind in rows.schema.items()).equals(rows)


def test_a_name_in_a_csv_is_no_formula_of_a_spreadsheet(period_bill: Bill, tmp_path: Path) -> None:
    names = ("=1+1", "+cmd", "-2", "@SUM(A1)", " =1", "\uff1d1", "research")
    charged = period_bill.frame
    teams = pl.Series([names[number % len(names)] for number in range(charged.height)])
    hostile = with_rows(period_bill, charged.with_columns(team=teams))
    focus.write(hostile, tmp_path / "f.csv")
    focus.write(hostile, tmp_path / "f.parquet")
    written = set(pl.read_csv(tmp_path / "f.csv", infer_schema=False)["SubAccountName"].drop_nulls())
    assert written == {"research", *(f"'{name}" for name in names[:-1])}
    assert set(pl.read_parquet(tmp_path / "f.parquet")["SubAccountName"].drop_nulls()) == set(names)


def test_many_portions_make_the_file_that_one_makes(
    period_bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = focus.write(period_bill, tmp_path / "a.csv")
    monkeypatch.setattr(focus, "_PORTION_ROWS", 1)
    reports: list[tuple[int, int]] = []
    cut = focus.write(period_bill, tmp_path / "b.csv", progress=lambda done, total: reports.append((done, total)))
    assert (cut.sha256, cut.rows) == (whole.sha256, whole.rows)
    assert len(reports) > 3
    assert reports[-1] == (period_bill.frame.height, period_bill.frame.height)


def test_charges_that_were_counted_twice_are_never_written(period_bill: Bill, tmp_path: Path) -> None:
    frame = period_bill.frame
    with pytest.raises(PricingError, match="break FOCUS's rules") as error:
        focus.write(with_rows(period_bill, pl.concat([frame, frame[3:4]]).sort("hour")), tmp_path / "f.parquet")
    assert "charges for the same as row" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_no_charges_are_no_export(period_bill: Bill, tmp_path: Path) -> None:
    with pytest.raises(PricingError, match="no charges to export"):
        focus.write(with_rows(period_bill, period_bill.frame.clear()), tmp_path / "f.csv")


def test_closed_hours_of_a_period_are_those_of_the_books(
    busy: Path, book: PriceBook, dear_book: PriceBook, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(busy, tmp_path / "ledger"))
    frozen = closing.close(Ledger(root), Period(PERIOD.from_ns, PERIOD.from_ns + 3 * HOUR_NS), book)
    made = bill(Ledger(root), PERIOD, dear_book)
    done = focus.write(made, tmp_path / "f.parquet")
    rows = pl.read_parquet(tmp_path / "f.parquet")
    sums = dict(rows.group_by("InvoiceId").agg(pl.col("BilledCost").sum()).iter_rows())
    assert sums == {frozen.close_id: frozen.cost_nano * NANO, None: made.parts[-1].total_nano * NANO}
    assert done.totals["billed"] == made.total_nano
    check_sums(made)


@pytest.mark.usefixtures("ledgers_folder")
@on_any_ledger
def test_any_ledger_makes_rows_that_keep_every_rule_and_drill_downs_that_re_add(made: Made) -> None:
    bill = whole_bill(root_of(made), ANY_BOOK)
    done = focus.write(bill, root_of(made).with_name("f.parquet"))
    assert done.totals["billed"] == done.totals["effective"] == bill.total_nano
    check_sums(bill)


@pytest.mark.parametrize(("open_period", "suffix"), [(True, ".csv"), (False, ".parquet")])
def test_focus_s_own_validator_finds_nothing_new(
    open_period: bool, suffix: str, period_bill: Bill, close_bill: Bill, tmp_path: Path
) -> None:
    if not (focus_validator.home() / "ready").exists():
        pytest.skip(f"the FOCUS validator is not set up; {focus_validator.COMMAND} does it in about a minute")
    focus.write(period_bill if open_period else close_bill, tmp_path / f"f{suffix}")
    # Of the pair on InvoiceId one fails for any row: C-004 where there is one, C-005 where there is none.
    holds = "InvoiceId-C-004-C" if open_period else "InvoiceId-C-005-C"
    broken = set(focus_validator.failures(tmp_path / f"f{suffix}"))
    assert broken == set(focus_validator.KNOWN_FALSE) - {holds}
    table = (focus_validator.ROOT / "docs" / "finance.md").read_text(encoding="utf-8")
    assert all(f"| `{rule}` |" in table for rule in broken)


def test_rows_of_an_unverified_ledger_say_so(tmp_path: Path, period_bill: Bill) -> None:
    unverified = dataclasses.replace(period_bill.stamp, verified=False)
    focus.write(dataclasses.replace(period_bill, stamp=unverified), tmp_path / "rows.parquet")
    provenances = pl.read_parquet(tmp_path / "rows.parquet")["x_Provenance"].unique().to_list()
    assert provenances == [f"{period_bill.stamp.provenance}, UNVERIFIED"]
