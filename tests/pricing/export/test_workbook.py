import dataclasses
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

from rose.pricing.closing.bill import Bill, Part
from rose.pricing.export import workbook
from rose.pricing.figures import AMORTIZED, FULLY_LOADED
from rose.pricing.money import PricingError

HEADER_ROW = workbook.TABLE_ROW + 1


@pytest.fixture(scope="module")
def file(close_bill: Bill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workbook") / "b.xlsx"
    workbook.write(close_bill, path)
    return path


@pytest.fixture(scope="module")
def values(file: Path) -> Any:
    return openpyxl.load_workbook(file, data_only=True)


@pytest.fixture(scope="module")
def formulas(file: Path) -> Any:
    return openpyxl.load_workbook(file)


def with_rows(bill: Bill, frame: pl.DataFrame) -> Bill:
    part = Part(source=frame, period=bill.period, posting=None, book=bill.parts[0].book)
    return dataclasses.replace(bill, parts=(part,))


def check_sums(bill: Bill) -> None:
    """Each sheet sums to the bill to the nano-dollar, or to a part of it that its column names."""
    charged = sum(part.total_nano for part in bill.charges)
    whole = {
        AMORTIZED: charged,
        FULLY_LOADED: charged,
        workbook.CORRECTIONS: bill.total_nano - charged,
        workbook.TOTAL: bill.total_nano,
        workbook.HOURS: sum(int(part.frame["ns"].sum()) for part in bill.charges),
    }
    for name, frame in workbook.pivots(bill).items():
        sums = {column: frame[column].sum() for column in frame.columns if column in whole}
        assert sums == {column: whole[column] for column in sums}, name


def test_every_sheet_sums_to_the_bill(close_bill: Bill) -> None:
    check_sums(close_bill)
    made = workbook.pivots(close_bill)
    assert close_bill.total_nano != close_bill.charges[0].total_nano
    assert all(workbook.CORRECTIONS in frame.columns for frame in made.values())
    assert [name for name in made if FULLY_LOADED in made[name].columns] == ["By team", "By run"]


def test_teams_bear_their_corrections_and_their_idle_time(close_bill: Bill) -> None:
    by_team = workbook.pivots(close_bill)["By team"]
    restated = pl.concat([part.frame for part in close_bill.parts]).group_by("team").agg(pl.col("cost_nano").sum())
    assert dict(by_team.select("team", workbook.TOTAL).iter_rows()) == dict(restated.iter_rows())
    research = by_team.row(by_team["team"].to_list().index("research"), named=True)
    assert research[FULLY_LOADED] != research[AMORTIZED]


def test_without_corrections_there_are_no_columns_of_them(period_bill: Bill) -> None:
    made = workbook.pivots(period_bill)
    assert "Corrections" not in made
    assert made["By team"].columns == ["team", workbook.HOURS, AMORTIZED, FULLY_LOADED]


def test_totals_are_formulas_that_re_add(values: Any, formulas: Any, close_bill: Bill) -> None:
    for name, frame in workbook.pivots(close_bill).items():
        sheet, last = values[name], HEADER_ROW + 1 + frame.height
        assert [cell.value for cell in sheet[HEADER_ROW]] == frame.columns
        assert (sheet.page_setup.orientation, sheet.freeze_panes) == ("landscape", f"A{HEADER_ROW + 1}")
        for index, column in enumerate(frame.columns, 1):
            if not frame[column].dtype.is_integer():
                continue
            cells, total = [sheet.cell(row, index) for row in range(HEADER_ROW + 1, last)], sheet.cell(last, index)
            assert total.value == pytest.approx(sum(cell.value for cell in cells), abs=1e-9)
            letter = total.column_letter
            assert formulas[name].cell(last, index).value == f"=SUM({letter}{HEADER_ROW + 1}:{letter}{last - 1})"
            if column != workbook.HOURS:
                assert "$" in total.number_format
                assert round(total.value * 10**9) == frame[column].sum()


def test_the_bill_is_exact_in_each_view(values: Any, close_bill: Bill) -> None:
    rows = {row[0].value: row for row in values[workbook.BILL].iter_rows() if row[0].value}
    for name, nano in (
        (AMORTIZED, close_bill.charges[0].total_nano),
        (FULLY_LOADED, close_bill.charges[0].total_nano),
        ("corrections posted since", close_bill.corrections[0].total_nano),
        ("amortized, with corrections", close_bill.total_nano),
    ):
        assert rows[name][2].value == str(nano)  # text: a double may not hold it
        assert round(rows[name][1].value * 10**9) == nano
    assert "one whole run" in rows["marginal"][1].value
    assert rows["closes"][1].value == close_bill.close_id
    assert rows["price book's SHA-256"][1].value == close_bill.stamp.book.sha256


def test_text_of_the_ledger_is_text(period_bill: Bill, tmp_path: Path) -> None:
    names = [f"{mark}1+1 \u202egnp.exe\u0007" for mark in "=+-@"]
    frame = period_bill.frame
    teams = pl.Series([names[row % len(names)] for row in range(frame.height)])
    workbook.write(with_rows(period_bill, frame.with_columns(team=teams)), tmp_path / "b.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "b.xlsx")["By team"]
    cells = [sheet.cell(HEADER_ROW + 1 + row, 1) for row in range(len(names))]
    assert {(cell.value, cell.data_type) for cell in cells} == {
        (f"{mark}1+1 \\u202egnp.exe\\x07", "s") for mark in "=+-@"
    }


def test_prices_are_numbers_with_their_source(values: Any) -> None:
    rows = list(values["Prices used"].iter_rows(min_row=HEADER_ROW + 1, values_only=True))
    assert {row[1] for row in rows} >= {1.700000001, 2.35, 0.777777777777, 0}
    assert all(row[6] == "by hand" for row in rows)


def test_figures_not_to_be_trusted_are_marked_on_every_sheet(period_bill: Bill, tmp_path: Path) -> None:
    stamp = dataclasses.replace(period_bill.stamp, verified=False, provenance="simulated")
    workbook.write(dataclasses.replace(period_bill, stamp=stamp), tmp_path / "b.xlsx")
    for sheet in openpyxl.load_workbook(tmp_path / "b.xlsx"):
        top = " ".join(str(cell.value) for row in sheet.iter_rows(max_row=3) for cell in row if cell.value)
        assert "SIMULATED" in top, sheet.title
        assert "UNVERIFIED" in top, sheet.title


def test_the_same_bill_is_the_same_bytes(file: Path, close_bill: Bill, tmp_path: Path) -> None:
    again = workbook.write(close_bill, tmp_path / "b.xlsx")
    assert (tmp_path / "b.xlsx").read_bytes() == file.read_bytes()
    assert again.totals == {"closed": close_bill.charges[0].total_nano, "bill": close_bill.total_nano}


def test_what_no_sheet_can_hold_is_refused(period_bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook, "_ROWS_MAX", 3)
    with pytest.raises(PricingError, match="an Excel sheet has at most 3"):
        workbook.write(period_bill, tmp_path / "b.xlsx")
    assert list(tmp_path.iterdir()) == []
