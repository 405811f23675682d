"""A bill as an Excel workbook. Totals are formulas. Amounts up to $9 million are exact to the nano-dollar."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import xlsxwriter
from xlsxwriter.utility import xl_rowcol_to_cell

from rose.clock import utc
from rose.ledger import verified
from rose.pricing.charges.pricing import exact
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.export import out, prices
from rose.pricing.export.out import Progress, Written
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR, PricingError
from rose.pricing.period import naive
from rose.terminal import visible

SUFFIX = ".xlsx"
BILL, PRICES = "Bill", "Prices used"
HOURS, CORRECTIONS, TOTAL = "device time, hours", "corrections", "total"
TABLE_ROW = 3
_BY: Mapping[str, tuple[str, ...]] = {  # Dimensions of each sheet, which sums to the bill.
    "By team": ("team",),
    "By run": ("run_id",),
    "By day and bucket": ("day", "bucket"),
    "By cause": ("bucket", "fate", "cause", "pool", "device_class", "route"),
    "By policy version": ("policy_version", "task", "bucket"),
}
_ROWS_MAX = 1_048_576 - 10  # Rows of an Excel sheet, less heading and total.


def write(bill: Bill, path: Path, *, progress: Progress = lambda done, total: None) -> Written:
    """Write the .xlsx file. The same bill gives the same bytes. Raises PricingError."""
    out.check(path, (SUFFIX,))
    sheets = {**pivots(bill), PRICES: _prices(bill)}
    for name, frame in sheets.items():
        if frame.height > _ROWS_MAX:
            raise PricingError(
                f"{name} has {frame.height:,} rows, but an Excel sheet has at most {_ROWS_MAX:,}: export FOCUS rows, "
                "or a shorter period"
            )

    def make(temporary: Path) -> tuple[int, Mapping[str, int]]:
        options = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
        created = naive(bill.period.to_ns)  # Not the time of writing: the same bill is the same file.
        with xlsxwriter.Workbook(str(temporary), options) as book:
            book.set_properties({"title": BILL, "comments": "Made by ROSE", "created": created})
            _write_bill(book, bill, int(sheets["By team"][FULLY_LOADED].sum()))
            for number, (name, frame) in enumerate(sheets.items(), 1):
                _write_table(book, name, frame, bill)
                progress(number, len(sheets))
        totals = {"closed": _charged_nano(bill)} if bill.close_id else {}
        return sum(frame.height for frame in sheets.values()), {**totals, "bill": bill.total_nano}

    return out.write(path, make)


def _charged_nano(bill: Bill) -> int:
    return sum(part.total_nano for part in bill.charges)


def pivots(bill: Bill) -> dict[str, pl.DataFrame]:
    parts = [
        part.frame.with_columns(
            posting=pl.lit(part.invoice_id, pl.String),
            reason=pl.lit(part.posting and part.posting.reason, pl.String),
            corrects=pl.lit(part.correction),
        )
        for part in bill.parts
    ]
    rows = pl.concat(parts, how="diagonal_relaxed").with_columns(
        pl.col("hour").dt.strftime("%Y-%m-%d").alias("day"),
        pl.when(~pl.col("corrects")).then(pl.col("ns")).otherwise(0).alias(HOURS),
        pl.when(~pl.col("corrects")).then(pl.col("cost_nano")).otherwise(0).alias(AMORTIZED),
        pl.when(pl.col("corrects")).then(pl.col("cost_nano")).otherwise(0).alias(CORRECTIONS),
        pl.col("cost_nano").alias(TOTAL),
    )
    corrected = (CORRECTIONS, TOTAL) if bill.corrections else ()
    made = {name: _summed(rows, by, (HOURS, AMORTIZED, *corrected)) for name, by in _BY.items()}
    loaded = bill.loaded
    for name, (key, *_) in _BY.items():
        if key in ("team", "run_id"):
            full = _summed(loaded.rename({"loaded_nano": FULLY_LOADED}), (key,), (FULLY_LOADED,))
            both = made[name].join(full, on=key, how="full", coalesce=True, nulls_equal=True).fill_null(0).sort(key)
            made[name] = both.select(key, HOURS, AMORTIZED, FULLY_LOADED, *corrected)
    with bill.ledger.connect() as connection:
        labels = dict(connection.execute("SELECT run_id, name FROM run").fetchall())
    named = pl.col("run_id").replace_strict(labels, default="", return_dtype=pl.String).alias("name")
    made["By run"] = made["By run"].select("run_id", named, pl.exclude("run_id"))
    if bill.corrections:
        by = ("posting", "reason", "day", "bucket", "team")
        made["Corrections"] = _summed(rows.filter("corrects"), by, (CORRECTIONS,))
    return made


def _summed(rows: pl.DataFrame, by: Sequence[str], sums: Sequence[str]) -> pl.DataFrame:
    summed = rows.group_by(by).agg(map(exact, sums)).sort(by)
    return summed.with_columns(pl.col(by).cast(pl.String).fill_null(UNALLOCATED))


def _prices(bill: Bill) -> pl.DataFrame:
    used = {price.name: price for part in bill.charges for price in prices.used(part)}
    rows = []
    for name, price in sorted(used.items()):
        cited = *price.entry.days, price.entry.source, price.entry.source_date
        rows.append((name, float(price.usd), price.unit, price.commitment, *cited))
    amounts = {"price": pl.String, "USD": pl.Float64, "for each": pl.String, "commitment": pl.String}
    sources = {"from": pl.Date, "until": pl.Date, "source": pl.String, "source's date": pl.Date}
    return pl.DataFrame(rows, schema=amounts | sources, orient="row")


def _write_bill(book: xlsxwriter.Workbook, bill: Bill, loaded_nano: int) -> None:
    sheet, bold = _sheet(book, BILL, bill), book.add_format({"bold": True})
    usd = book.add_format({"num_format": _money(bill)})
    sheet.set_column(0, 0, 30)
    sheet.set_column(1, 2, 40)
    stamp, checked = bill.stamp, "verified" if bill.stamp.verified else "NOT VERIFIED"
    facts = {
        "closes": ", ".join(bill.closes) or "none: not closed yet",
        "period": f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}",
        "provenance": stamp.provenance,
        "ledger": f"{checked}; now {verified.text(bill.ledger.folder)}",
        "price book": stamp.book.line,
        "price book's SHA-256": stamp.book.sha256,
    }
    for row, (name, value) in enumerate(facts.items(), TABLE_ROW):
        sheet.write_string(row, 0, name, bold)
        sheet.write_string(row, 1, visible(value))
    head = TABLE_ROW + len(facts) + 1
    for column, name in enumerate(("view, never added together", "USD", "nano-dollars, exact")):
        sheet.write_string(head, column, name, bold)
    for row, (name, nano) in enumerate(_views(bill, loaded_nano), head + 1):
        sheet.write_string(row, 0, name, bold)
        if nano is None:
            sheet.write_string(row, 1, "a figure of one whole run: `rose report` gives it")
        else:
            sheet.write_number(row, 1, nano / NANO_USD_PER_USD, usd)
            sheet.write_string(row, 2, str(nano))


def _views(bill: Bill, loaded_nano: int) -> Iterator[tuple[str, int | None]]:
    yield AMORTIZED, _charged_nano(bill)
    yield FULLY_LOADED, loaded_nano
    yield MARGINAL, bill.marginal_nano
    if bill.corrections:
        yield "corrections posted since", bill.total_nano - _charged_nano(bill)
        yield "amortized, with corrections", bill.total_nano


def _write_table(book: xlsxwriter.Workbook, name: str, frame: pl.DataFrame, bill: Bill) -> None:
    sheet = _sheet(book, name, bill)
    scale = {column: NANO_USD_PER_USD for column, dtype in frame.schema.items() if dtype.is_integer()}
    formats: dict[str, str] = {**dict.fromkeys(scale, _money(bill)), "USD": "0.############"}
    if HOURS in scale:
        scale[HOURS], formats[HOURS] = NS_PER_HOUR, "#,##0.0000"
    shown = frame.with_columns(
        pl.col(pl.String).map_elements(visible, return_dtype=pl.String),
        *(pl.col(column) / unit for column, unit in scale.items()),
    )
    shown.write_excel(
        book,
        name,
        position=(TABLE_ROW, 0),
        column_formats={column: text for column, text in formats.items() if column in frame.columns},
        freeze_panes=(TABLE_ROW + 1, 0),
        autofit=True,
    )
    last = TABLE_ROW + 1 + frame.height
    for column, unit in scale.items():
        index = frame.columns.index(column)
        begin, end = (xl_rowcol_to_cell(row, index) for row in (TABLE_ROW + 1, last - 1))
        style = book.add_format({"num_format": formats[column], "bold": True, "top": 1})
        sheet.write_formula(last, index, f"=SUM({begin}:{end})", style, frame[column].sum() / unit)


def _sheet(book: xlsxwriter.Workbook, name: str, bill: Bill) -> Any:
    sheet = book.add_worksheet(name)
    sheet.set_landscape()
    sheet.set_paper(9)
    sheet.fit_to_pages(1, 0)
    sheet.set_footer("&R&A, page &P of &N")
    sheet.write_string(0, 0, f"{name}: {AMORTIZED}; {bill.stamp}", book.add_format({"bold": True}))
    red = book.add_format({"bold": True, "bg_color": "#C00000", "font_color": "#FFFFFF"})
    if warnings := bill.stamp.warnings:
        sheet.write_string(1, 0, " ".join(warnings), red)
    return sheet


def _money(bill: Bill) -> str:
    usd = '"$"#,##0.00' if bill.total_nano >= 1000 * NANO_USD_PER_USD else '"$"#,##0.000000000'
    return f"{usd};[Red]-{usd}"
