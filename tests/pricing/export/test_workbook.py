from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

from rose.pricing.export import drilldown, workbook
from rose.pricing.export.bill import Bill
from rose.pricing.money import PricingError
from rose.pricing.table import SUMMED
from tests.pricing.export.conftest import NAME

SHEETS = [
    "Summary",
    "By team",
    "By bucket and day",
    "By run",
    "By policy version and task",
    "Waste by cause",
    "Idle",
    "Transfer and energy",
    "Prices used",
    "Corrections",
    "How to read this",
]
HEADER_ROW = 5


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


def test_the_sheets_are_all_there_and_print_well(values: Any) -> None:
    assert values.sheetnames == SHEETS
    for sheet in values:
        assert sheet.page_setup.orientation == "landscape"
        assert sheet.freeze_panes == ("A2" if sheet.title == "Summary" else f"A{HEADER_ROW + 1}")
        assert sheet.column_dimensions["A"].width > 10


def test_totals_are_formulas_that_re_add(values: Any, formulas: Any, close_bill: Bill) -> None:
    for table in drilldown.tables(close_bill):
        sheet, last = values[table.name], HEADER_ROW + 1 + len(table.rows)
        assert [cell.value for cell in sheet[HEADER_ROW]] == [
            column.name + ", hours" * (column.kind == "hours") for column in table.columns
        ]
        for index, column in enumerate(table.columns):
            if column.kind in SUMMED:
                cells = [sheet.cell(row, index + 1) for row in range(HEADER_ROW + 1, last)]
                # What does not apply, such as the energy of what was sent, is an empty cell.
                given = [row[index] is not None for row in table.rows]
                assert [isinstance(cell.value, int | float) for cell in cells] == given
                total = sheet.cell(last, index + 1)
                assert total.value == pytest.approx(sum(cell.value or 0 for cell in cells), abs=1e-9)
                letter = total.column_letter
                expected = f"=SUM({letter}{HEADER_ROW + 1}:{letter}{last - 1})" if table.rows else "=0"
                assert formulas[table.name].cell(last, index + 1).value == expected
                if column.kind == "money":
                    assert "$" in total.number_format
                    assert round(total.value * 10**9) == table.total(index)


def test_the_summary_re_adds_every_drill_down(values: Any, formulas: Any, close_bill: Bill) -> None:
    rows = {row[0].value: row for row in values["Summary"].iter_rows() if row[0].value}
    for name, nano in (
        ("amortized", close_bill.charges.total_nano),
        ("fully loaded", close_bill.charges.total_nano),
        ("corrections posted since", close_bill.corrections[0].total_nano),
        ("amortized, with corrections", close_bill.total_nano),
    ):
        assert rows[name][2].value == str(nano)  # text: a double may not hold it
        assert round(rows[name][1].value * 10**9) == nano
    assert "not enough data" in rows["marginal"][1].value
    proofs = [row for name, row in rows.items() if name.startswith("By ") or name.startswith("Idle,")]
    assert len(proofs) == 9
    assert all(row[2].value == 0 for row in proofs)
    summary = {row[0].value: row[1].value for row in formulas["Summary"].iter_rows() if row[0].value}
    assert summary["amortized"] == "='By team'!$C$8"
    assert summary["amortized, with corrections"].startswith("=B")


def test_teams_bear_their_corrections(values: Any, close_bill: Bill) -> None:
    header, *rows = values["By team"].iter_rows(min_row=HEADER_ROW, values_only=True)
    assert header[:2] == ("team", "device time, hours")
    assert header[-2:] == ("corrections", "amortized, with corrections")
    teams, total = {row[0]: row for row in rows[:-1]}, rows[-1]
    restated = pl.concat([part.frame for part in close_bill.parts]).group_by("team").agg(pl.col("cost_nano").sum())
    assert {team: round(row[-1] * 10**9) for team, row in teams.items()} == dict(restated.iter_rows())
    assert all(row[-1] == pytest.approx(row[2] + row[-2], abs=1e-9) for row in teams.values())
    assert round(total[-2] * 10**9) == close_bill.corrections[0].total_nano != 0
    assert round(total[-1] * 10**9) == close_bill.total_nano


def test_without_corrections_teams_have_no_columns_of_them(period_bill: Bill) -> None:
    by_team = drilldown.tables(period_bill)[0]
    assert [column.name for column in by_team.columns] == ["team", "device time", "amortized", "fully loaded"]


def test_formulas_point_at_the_cells_they_mean(values: Any, formulas: Any) -> None:
    """Work each reference out again: what Excel will show is what stands there now."""
    for row in formulas["Summary"].iter_rows(max_col=2):
        formula = row[1].value
        if isinstance(formula, str) and formula.startswith("='"):
            name, cell = formula.removeprefix("='").split("'!")
            assert values[name][cell.replace("$", "")].value == values["Summary"].cell(row[1].row, 2).value


def test_text_of_the_ledger_is_text(values: Any, formulas: Any) -> None:
    cell = formulas["By run"].cell(HEADER_ROW + 1, 2)
    assert (cell.value, cell.data_type) == (NAME, "s")


def test_prices_are_numbers_with_their_source(values: Any) -> None:
    rows = list(values["Prices used"].iter_rows(min_row=HEADER_ROW + 1, values_only=True))
    assert {row[1] for row in rows} >= {1.700000001, 2.35, 0.777777777777, 0}
    assert all(row[6] == "made up for the tests" for row in rows)


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
    assert again.totals == {"closed": close_bill.charges.total_nano, "bill": close_bill.total_nano}


def test_what_no_sheet_can_hold_is_refused(period_bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook, "_ROWS_MAX", 3)
    with pytest.raises(PricingError, match="a sheet of Excel holds 3"):
        workbook.write(period_bill, tmp_path / "b.xlsx")
    assert list(tmp_path.iterdir()) == []
