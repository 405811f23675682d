"""The FOCUS 1.2 rows of a bill, as Parquet or CSV. Each hour of the fleet has two kinds of rows: purchases with the
billed cost, and charges with the amortized cost. Quantities are rounded to 1e-12."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq

import sql
from rose.ledger import verified
from rose.ledger.commands.output import FORMULA
from rose.ledger.files import database
from rose.pricing import query
from rose.pricing.closing.bill import Bill
from rose.pricing.export import focus_check, out, prices
from rose.pricing.export.out import Progress, Written
from rose.pricing.money import PricingError
from rose.pricing.period import naive

SUFFIXES = (".parquet", ".csv")
_PORTION_ROWS = 100_000  # A portion ends with the hour that reaches this length.


def write(bill: Bill, path: Path, *, progress: Progress = lambda done, total: None) -> Written:
    """Check and write the FOCUS rows of a bill. The same bill gives the same bytes. Raises PricingError."""
    out.check(path, SUFFIXES)

    def make(temporary: Path) -> tuple[int, Mapping[str, int]]:
        stored = temporary.with_suffix(".parquet")
        try:
            _write(bill, stored, progress)
        except duckdb.Error as error:
            raise PricingError(f"the charges cannot be made into FOCUS rows: {str(error).splitlines()[0]}") from error
        report = focus_check.check(stored, charges_nano(bill))
        if report.faults:
            lines = "\n".join(f"  {path.name}, {fault}" for fault in report.faults)
            raise PricingError(f"the rows break FOCUS's rules, so nothing was exported:\n{lines}")
        if path.suffix == ".csv":
            text = pl.col(pl.String).str.replace(FORMULA.pattern, "'$0")  # No cell is a formula of a spreadsheet.
            pl.scan_parquet(stored).with_columns(text).sink_csv(temporary)
        return report.rows, report.totals

    return out.write(path, make)


def charges_nano(bill: Bill) -> dict[str, int]:
    charged = pl.concat([part.frame.select("bucket", "cost_nano") for part in bill.parts])
    sums = charged.group_by("bucket").agg(pl.col("cost_nano").sum()).sort("bucket")
    return {bucket: int(nano) for bucket, nano in sums.iter_rows()}


def _write(bill: Bill, path: Path, progress: Progress) -> None:
    script, writer, done = sql.read("export/focus.sql"), None, 0
    charged = sum(part.frame.height for part in bill.parts)
    described = {"rose.verified": verified.text(bill.ledger.folder), "rose.price_book": bill.stamp.book.line}
    with database.connect() as connection:
        connection.execute(sql.read("export/amounts.sql"))
        connection.execute("SET VARIABLE verified = $verified", {"verified": bill.stamp.verified})
        connection.execute("SET VARIABLE example = $example", {"example": bill.stamp.book.example})
        _tables(connection, bill)
        try:
            for portion in _portions(bill):
                progress(done, charged)
                connection.register("charge", portion)
                for batch in connection.sql(script).to_arrow_reader(_PORTION_ROWS):
                    writer = writer or pq.ParquetWriter(path, batch.schema.with_metadata(described), compression="zstd")
                    writer.write_batch(batch)
                done += portion.height
        finally:
            if writer is not None:
                writer.close()
    progress(done, charged)


def _portions(bill: Bill) -> Iterator[pl.DataFrame]:
    if not any(prices.keyed(part).height for part in bill.charges):
        raise PricingError("the period has no charges to export")
    single = len(bill.parts) == 1  # The marginal cost is of a whole run's charges.
    for number, part in enumerate(bill.parts):
        marginal = _marginal(part.frame, bill.marginal_nano if single else None)
        frame = prices.keyed(part).with_columns(pl.lit(number).alias("part"), marginal).with_row_index("n")
        start = taken = 0
        for hours in frame["hour"].rle().struct.field("len"):
            taken += hours
            if taken - start >= _PORTION_ROWS or taken == frame.height:
                yield frame[start:taken]
                start = taken


def _marginal(frame: pl.DataFrame, total_nano: int | None) -> pl.Expr:
    """Return a column that divides `total_nano` among the rows of borrowed time, in proportion to time. The column is
    null in all other rows. It is null everywhere if `total_nano` is None."""
    borrowed = (pl.col("pool") == "serving") & (pl.col("bucket") == "rollout")
    name = "marginal_nano"
    if total_nano is None or not frame.filter(borrowed)["ns"].sum():
        return pl.lit(None, pl.Int64).alias(name)
    taken = pl.when(borrowed).then("ns").otherwise(0).cast(pl.Int128).cum_sum()
    upto = taken * pl.lit(total_nano, pl.Int128) // taken.last()  # Differences of running sums: no nano-dollar is lost.
    return pl.when(borrowed).then(upto - upto.shift(1, fill_value=0)).cast(pl.Int64).alias(name)


def _tables(connection: duckdb.DuckDBPyConnection, bill: Bill) -> None:
    connection.execute(sql.read("export/focus_tables.sql"))
    parts, used = [], []
    for number, part in enumerate(bill.parts):
        book, billed = part.book, part.billing_period
        ends = naive(billed.from_ns), naive(billed.to_ns)
        names = book.currency, book.name, book.version, book.sha256
        parts.append((number, part.correction, part.invoice_id, *ends, *names))
        for price in [] if part.correction else prices.used(part):  # A correction needs no price; its book may lack it.
            used.append((number, price.item, price.stretch, round(price.usd * 10**12), price.name, price.commitment))
    query.insert(connection, "part", parts)
    query.insert(connection, "price", used)
    with bill.ledger.connect() as ledger:
        connection.register("run_tag", ledger.sql("SELECT run_id, tags_json FROM run").pl())
