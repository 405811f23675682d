"""A bill as an Excel workbook: a summary, its drill-downs, the prices behind it, and how to read it.

Amounts are numbers, so that they can be worked with: doubles, which tell nano-dollars apart up to nine million dollars.
Where exactness matters whole nano-dollars stand beside them as text. Every total is a formula over its column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xlsxwriter
from xlsxwriter.utility import xl_rowcol_to_cell

from rose.pricing.export import drilldown, facts, out
from rose.pricing.export.bill import Bill
from rose.pricing.export.out import Written
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, PricingError
from rose.pricing.table import SUMMED, Column, Kind, Table, columns

SUFFIXES = (".xlsx",)
SUMMARY, READING = "Summary", "How to read this"
#: What one of the shown unit is, in units of the cell's whole number.
_SCALE: Mapping[Kind, int] = {
    "money": NANO_USD_PER_USD,
    "hours": NS_PER_HOUR,
    "count": 1,
    "gb": 10**9,
    "kwh": 3_600_000 * 10**12,
}
_FORMAT: Mapping[Kind, str] = {
    "hours": "#,##0.0000",
    "count": "#,##0",
    "gb": "#,##0.000",
    "kwh": "#,##0.0000",
    "price": "0.############",
}
_WIDTH: Mapping[Kind, int] = {"money": 20, "hours": 16, "count": 16, "gb": 14, "kwh": 14, "price": 16}
#: Rows a sheet of Excel can hold, less its heading and total.
_ROWS_MAX = 1_048_576 - 10
_HEADING_ROW = 4

Progress = Callable[[int, int], None]


def write(bill: Bill, path: Path, *, force: bool = False, progress: Progress = lambda done, total: None) -> Written:
    """Write the workbook to `path`, an .xlsx. The same bill gives the same bytes.

    Rows are those of all drill-downs; the totals are nano-dollars. `progress` is told sheets done, and of how many.
    Raises PricingError if the file cannot be written, or a drill-down has more rows than a sheet can hold.
    """
    out.suffix_of(path, SUFFIXES, "a workbook")
    tables = drilldown.tables(bill)
    for table in tables:
        if len(table.rows) > _ROWS_MAX:
            raise PricingError(
                f"{table.name} has {len(table.rows):,} rows and a sheet of Excel holds {_ROWS_MAX:,}: export a shorter "
                "period, or FOCUS"
            )

    def make(temporary: Path) -> tuple[int, Mapping[str, int]]:
        _Book(bill, temporary).write(tables, progress)
        totals = {"closed": bill.charges.total_nano} if bill.close_id else {}
        return sum(len(table.rows) for table in tables), {**totals, "bill": bill.total_nano}

    return out.write(path, force, make)


class _Book:
    """The file while it is made."""

    def __init__(self, bill: Bill, path: Path) -> None:
        self._bill = bill
        self._book = xlsxwriter.Workbook(
            str(path), {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
        )
        # Not the time of writing, so that the same bill is the same file.
        created = datetime.fromtimestamp(bill.stamp.to_ns // 10**9, UTC).replace(tzinfo=None)
        self._book.set_properties({"title": facts.title(bill), "comments": "Made by ROSE", "created": created})
        # Below a thousand dollars cents are too coarse to tell anything apart.
        usd = '"$"#,##0.00' if bill.charges.total_nano >= 1000 * NANO_USD_PER_USD else '"$"#,##0.000000000'
        formats: dict[Kind, str] = {**_FORMAT, "money": f"{usd};[Red]-{usd}"}
        self._cell = {kind: self._book.add_format({"num_format": text}) for kind, text in formats.items()}
        self._sum = {
            kind: self._book.add_format({"num_format": text, "bold": True, "top": 1}) for kind, text in formats.items()
        }
        self._title = self._book.add_format({"bold": True, "font_size": 14})
        self._bold = self._book.add_format({"bold": True})
        self._warning = self._book.add_format({"bold": True, "bg_color": "#C00000", "font_color": "#FFFFFF"})
        self._note = self._book.add_format({"italic": True, "font_color": "#595959"})
        self._head = self._book.add_format({"bold": True, "bg_color": "#DDE6F0", "bottom": 1, "text_wrap": True})
        self._wrap = self._book.add_format({"text_wrap": True, "valign": "top"})
        #: Where the total of each column of dollars stands, by sheet and column.
        self._totals: dict[tuple[str, str], str] = {}

    def write(self, tables: list[Table], progress: Progress) -> None:
        summary = self._sheet(SUMMARY)
        for number, table in enumerate(tables):
            progress(number, len(tables))
            self._table(table)
        self._reading()
        # Last, for it refers to the totals of all others.
        self._summary(summary, tables)
        self._book.close()
        progress(len(tables), len(tables))

    def _sheet(self, name: str, columns: tuple[Column, ...] = ()) -> Any:
        sheet = self._book.add_worksheet(name)
        sheet.set_landscape()
        sheet.set_paper(9)
        sheet.fit_to_pages(1, 0)
        sheet.set_footer(f"&L{facts.title(self._bill).replace('&', '&&')}, {self._bill.stamp}&R&A, page &P of &N")
        for index, column in enumerate(columns):
            sheet.set_column(index, index, _WIDTH.get(column.kind, 26))
        return sheet

    def _heading(self, sheet: Any, title: str, note: str) -> None:
        sheet.write_string(0, 0, title, self._title)
        sheet.write_string(1, 0, note, self._note)
        if warnings := facts.warnings(self._bill.stamp):
            sheet.write_string(2, 0, " ".join(warnings), self._warning)

    def _header(self, sheet: Any, columns: tuple[Column, ...]) -> None:
        for index, column in enumerate(columns):
            # Elsewhere a duration has its unit beside it; a number has none.
            name = f"{column.name}, hours" if column.kind == "hours" else column.name
            sheet.write_string(_HEADING_ROW, index, name, self._head)
        sheet.freeze_panes(_HEADING_ROW + 1, 0)
        sheet.repeat_rows(_HEADING_ROW)

    def _table(self, table: Table) -> None:
        sheet = self._sheet(table.name, table.columns)
        self._heading(sheet, table.title, "; ".join((table.terms, *table.notes)))
        self._header(sheet, table.columns)
        first = _HEADING_ROW + 1
        for number, row in enumerate(table.rows, first):
            for index, (column, value) in enumerate(zip(table.columns, row, strict=True)):
                self._value(sheet, number, index, column.kind, value)
        for last, row in enumerate(table.footer, first + len(table.rows)):
            for index, (column, value) in enumerate(zip(table.columns, row, strict=True)):
                if column.kind not in SUMMED:
                    sheet.write_string(last, index, str(value or ""), self._bold)
                elif value is not None:
                    self._total(sheet, table, index, first, last)

    def _total(self, sheet: Any, table: Table, index: int, first: int, last: int) -> None:
        """The sum of a column, as a formula."""
        column, total = table.columns[index], table.total(index)
        begin, end = xl_rowcol_to_cell(first, index), xl_rowcol_to_cell(max(first, last - 1), index)
        formula = f"=SUM({begin}:{end})" if table.rows else "=0"
        sheet.write_formula(last, index, formula, self._sum[column.kind], total / _SCALE[column.kind])
        if column.kind == "money":
            cell = xl_rowcol_to_cell(last, index, row_abs=True, col_abs=True)
            self._totals[table.name, column.name] = f"'{table.name}'!{cell}"

    def _value(self, sheet: Any, row: int, index: int, kind: Kind, value: Any) -> None:
        if value is None:
            return
        if kind in ("text", "figure"):
            sheet.write_string(row, index, str(value))
        elif kind == "price":
            sheet.write_number(row, index, float(value), self._cell[kind])
        else:
            # One division of whole numbers: the nearest double there is.
            sheet.write_number(row, index, int(value) / _SCALE[kind], self._cell[kind])

    def _summary(self, sheet: Any, tables: list[Table]) -> None:
        bill = self._bill
        sheet.set_column(0, 0, 44)
        sheet.set_column(1, 1, 26)
        sheet.set_column(2, 2, 26)
        sheet.set_column(3, 3, 70)
        sheet.write_string(0, 0, facts.title(bill), self._title)
        row = 1
        for warning in facts.warnings(bill.stamp):
            for index in range(4):
                sheet.write_string(row, index, warning if index == 0 else "", self._warning)
            row += 1
        for name, value in facts.about(bill):
            row += 1
            sheet.write_string(row, 0, name, self._bold)
            sheet.write_string(row, 1, value)
        row = self._views(sheet, row + 2, tables)
        self._proof(sheet, row + 1, tables)
        sheet.freeze_panes(1, 0)

    def _views(self, sheet: Any, row: int, tables: list[Table]) -> int:
        """The bill in each view, and with its corrections; returns the row below."""
        bill, by_team = self._bill, tables[0]
        for index, name in enumerate(("view, never added together", "USD", "nano-dollars, exact", "what it is")):
            sheet.write_string(row, index, name, self._head)
        meanings = dict(facts.DEFINITIONS)
        lines: list[tuple[str, str | None, int | None]] = [
            (AMORTIZED, self._totals["By team", "amortized"], bill.charges.total_nano),
            (FULLY_LOADED, self._totals["By team", "fully loaded"], by_team.total(3)),
            (MARGINAL, None, bill.marginal_nano),
        ]
        for name, cell, nano in lines:
            row += 1
            self._amount(sheet, row, name, cell, nano, meanings[name])
        if bill.close_id is not None:
            corrections = bill.total_nano - bill.charges.total_nano
            cell = self._totals["Corrections", "amortized"]
            self._amount(sheet, row + 2, "corrections posted since", cell, corrections, meanings["correction"])
            restated = f"{xl_rowcol_to_cell(row - 2, 1)}+{xl_rowcol_to_cell(row + 2, 1)}"
            self._amount(sheet, row + 3, "amortized, with corrections", restated, bill.total_nano, "")
            row += 3
        return row + 1

    def _amount(self, sheet: Any, row: int, name: str, formula: str | None, nano: int | None, meaning: str) -> None:
        sheet.write_string(row, 0, name, self._bold)
        if nano is None:
            why = "not enough data: it is a figure of one whole run; `rose report` gives it"
            sheet.write_string(row, 1, why)
        else:
            usd = nano / NANO_USD_PER_USD
            if formula is None:
                sheet.write_number(row, 1, usd, self._cell["money"])
            else:
                sheet.write_formula(row, 1, f"={formula}", self._cell["money"], usd)
            sheet.write_string(row, 2, str(nano))
        sheet.write_string(row, 3, meaning, self._wrap)

    def _proof(self, sheet: Any, row: int, tables: list[Table]) -> None:
        """Every drill-down beside what it must sum to, with the difference: 0 if nothing was left out or doubled."""
        for index, name in enumerate(("drill-down", "sums to", "less what it must sum to", "which is")):
            sheet.write_string(row, index, name, self._head)
        nano = {bucket: cost for bucket, (_, cost) in drilldown.by_bucket(self._bill.charges.frame).items()}
        parts = {
            "By policy version and task": ("rollout",),
            "Waste by cause": ("rollout",),
            "Idle": ("idle", "unaccounted"),
            "Transfer and energy": ("transfer", "energy"),
        }
        corrections = sum(part.total_nano for part in self._bill.corrections)
        corrected = {
            drilldown.CORRECTIONS: (corrections, "what was posted after the close"),
            drilldown.WITH_CORRECTIONS: (self._bill.total_nano, "the bill with its corrections"),
        }
        for table in tables:
            for index, column in enumerate(table.columns):
                if column.kind != "money" or table.name == "Corrections":
                    continue
                buckets = parts.get(table.name)
                expected = sum(nano.get(bucket, 0) for bucket in buckets) if buckets else sum(nano.values())
                which = f"the cost of {' and '.join(buckets)}" if buckets else "the bill"
                if column.name in corrected:
                    expected, which = corrected[column.name]
                row += 1
                cell, total = self._totals[table.name, column.name], table.total(index)
                sheet.write_string(row, 0, f"{table.name}, {column.name}", self._bold)
                sheet.write_formula(row, 1, f"={cell}", self._cell["money"], total / NANO_USD_PER_USD)
                difference = f"=ROUND({cell}-{expected / NANO_USD_PER_USD!r},6)"
                sheet.write_formula(row, 2, difference, self._cell["money"], (total - expected) / NANO_USD_PER_USD)
                sheet.write_string(row, 3, which)

    def _reading(self) -> None:
        sheet = self._sheet(READING)
        sheet.set_column(0, 0, 28)
        sheet.set_column(1, 1, 120)
        self._heading(sheet, READING, "Every table names the view of its dollars, the currency and the provenance.")
        self._header(sheet, columns("word", "meaning", text=("meaning",)))
        for row, (word, meaning) in enumerate((*facts.DEFINITIONS, *facts.SYMBOLS), _HEADING_ROW + 1):
            sheet.write_string(row, 0, word, self._bold)
            sheet.write_string(row, 1, meaning, self._wrap)
