"""Compares a vendor's FOCUS invoice with the ledger's amortized charges, by device and day, in nano-dollars."""

import tempfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

import sql
from rose.ledger.files import database
from rose.ledger.ledger import Ledger
from rose.pricing.closing.bill import bill
from rose.pricing.figures import AMORTIZED
from rose.pricing.money import PricingError, format_ns, format_usd
from rose.pricing.period import NS_PER_DAY, Period, naive
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import records
from rose.pricing.table import Column, Element, Table

_REQUIRED = ("BilledCost", "BillingCurrency", "ChargeCategory", "ChargePeriodEnd", "ChargePeriodStart", "EffectiveCost")
_OPTIONAL = (
    *("ConsumedQuantity", "ConsumedUnit", "PricingQuantity", "PricingUnit", "ResourceId", "ResourceType", "SkuId"),
)
_OPTIONS: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "512MB", "threads": "2"}
_FAULTS_MAX, _DAYS_MAX = 5, 1000


def reconcile(
    ledger: Ledger,
    path: Path,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    tolerance: Fraction = Fraction(5, 1000),
    provenance: str | None = None,
) -> dict[str, Any]:
    """Return the amounts of the ledger and of the invoice for each line, and the days on which they differ by more than
    `tolerance` (a share of the ledger's amount). Raises PricingError."""
    if period.from_ns % NS_PER_DAY or period.to_ns % NS_PER_DAY:
        raise PricingError("an invoice is compared by UTC day: give a period of whole UTC days")
    if not path.is_file():
        raise PricingError(f"{path} does not exist")
    with (
        tempfile.TemporaryDirectory(prefix="rose-reconcile-") as folder,
        database.connect(f"{folder}/work.duckdb", config=_OPTIONS) as connection,
    ):
        connection.execute("SET TimeZone = 'UTC'; SET autoinstall_known_extensions = false")
        try:
            _read(connection, path, Path(folder))
        except duckdb.Error as error:
            text = str(error).splitlines()[0].replace(f"{folder}/invoice", path.name)
            raise PricingError(f"{path} is not a FOCUS file in CSV or Parquet: {text}") from None
        billed = bill(ledger, period, price_book, provenance=provenance)
        beside = pl.col("bucket").is_in(("transfer", "energy"))
        keys = ("hardware_id", "device_id", "device_class", "bucket")
        charged = billed.by(*keys, amounts=("ns", "cost_nano"), every="1d").with_columns(
            item=pl.when(beside).then("bucket").otherwise(pl.lit("device time")),
            ns=pl.when(beside).then(0).otherwise("ns"),
        )
        connection.register("charged", charged.rename({"hour": "day"}))
        connection.register("mapping", _mapping(ledger, period, price_book, billed.stamp.provenance))
        for name, ns in (("from_day", period.from_ns), ("to_day", period.to_ns)):
            connection.execute(f"SET VARIABLE {name} = $value::TIMESTAMP", {"value": naive(ns)})
        connection.execute(sql.read("reconcile/compare.sql"))

        def query(text: str) -> list[dict[str, Any]]:
            return records(connection.execute(text))

        if not query("FROM invoice_day LIMIT 1"):
            raise PricingError(f"{path} has no charge of usage in {period.label}; give the invoice of that period")
        by = "abs(difference_nano) DESC, kind, name, item"
        lines = query(f"SELECT * EXCLUDE (level, day) FROM summed WHERE level = 'line' ORDER BY {by}")
        beyond = f"abs(difference_nano) > {float(tolerance)} * abs(ledger_nano) ORDER BY {by}, day LIMIT {_DAYS_MAX}"
        days = f"SELECT * EXCLUDE (level) FROM summed WHERE level = 'day' AND {beyond}"
        others = "SELECT category, count(*) AS rows, sum(billed)::VARCHAR AS billed FROM invoice_row WHERE NOT compared"
        (total,) = query("SELECT * EXCLUDE (level, day, kind, name, item) FROM summed WHERE level = 'total'")
        disagreement = sum(abs(line["difference_nano"]) for line in lines)
        return {
            "view": AMORTIZED,
            **billed.stamp.to_json(),
            "file": path.name,
            "tolerance": float(tolerance),
            "within": disagreement <= tolerance * abs(total["ledger_nano"]),
            "disagreement_nano": disagreement,
            "total": total,
            "lines": [line | {"reason": _reason(line, tolerance)} for line in lines],
            "days": [day | {"day": str(day["day"])} for day in query(days)],
            "other_charges": query(f"{others} GROUP BY category ORDER BY category"),
            "repeated_rows": [row["row"] for row in query("SELECT row FROM invoice_row WHERE again LIMIT 10")],
        }


def _read(connection: duckdb.DuckDBPyConnection, path: Path, folder: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(4)
    link = folder / "invoice"  # DuckDB would take a name with * or [ for a pattern.
    link.symlink_to(path.resolve())
    compression = "gzip" if magic.startswith(b"\x1f\x8b") else "none"
    source = (
        f"read_parquet('{link}')"
        if magic == b"PAR1"
        else f"read_csv('{link}', all_varchar = true, header = true, delim = ',', quote = '\"', escape = '\"', "
        f"nullstr = ['', 'NULL', 'null'], allow_quoted_nulls = true, compression = '{compression}')"
    )
    names = connection.sql(f"FROM {source} LIMIT 0").columns
    if missing := [name for name in _REQUIRED if name not in names]:
        raise PricingError(f"{path} lacks the FOCUS columns {', '.join(missing)}; it has {', '.join(names[:8])}")
    cells = [f"{name}::VARCHAR AS {name}" if name in names else f"NULL AS {name}" for name in (*_REQUIRED, *_OPTIONAL)]
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    connection.execute(
        f"CREATE TEMP VIEW written AS SELECT row_number() OVER () AS row, hash({quoted}) AS fingerprint, "
        f"{', '.join(cells)} FROM {source}"
    )
    connection.execute(sql.read("reconcile/rows.sql"))
    faults = "SELECT row, fault FROM invoice_row WHERE fault IS NOT NULL ORDER BY row"
    if wrong := connection.execute(f"{faults} LIMIT {_FAULTS_MAX}").fetchall():
        lines = "\n".join(f"  row {row}: {fault}" for row, fault in wrong)
        raise PricingError(f"{path} cannot be reconciled (row 1 is the first below the header):\n{lines}")


def _mapping(ledger: Ledger, period: Period, named: str | PriceBook | None, provenance: str) -> pl.DataFrame:
    try:
        book = pricebook.choose(ledger, named, period=period, provenance=provenance)
    except pricebook.NoPriceBookError:
        book = None
    rows = [
        (place, entry.resource, entry.sku, *entry.target)
        for place, entry in enumerate(book.vendor_resource if book else ())
    ]
    schema = {"place": pl.Int64, "resource": pl.String, "sku": pl.String, "kind": pl.String, "target": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _reason(line: Mapping[str, Any], tolerance: Fraction) -> str:
    ledger, billed, difference = line["ledger_nano"], line["effective_nano"], line["difference_nano"]
    if abs(difference) <= tolerance * abs(ledger):
        return ""
    if not line["days_both"]:
        return "missing on the invoice" if line["days_ledger"] else "missing in the ledger"
    reasons = [f"repeated rows make {format_usd(line['again_nano'])}"] if line["again_nano"] else []
    if line["ledger_ns"] and line["invoice_ns"] and ledger:
        by_hours = round(Fraction(line["invoice_ns"] - line["ledger_ns"], line["ledger_ns"]) * ledger)
        if 2 * abs(by_hours) >= abs(difference):
            reasons.append(
                f"hours: {format_ns(line['invoice_ns'])} billed, {format_ns(line['ledger_ns'])} in the ledger"
            )
        if 2 * abs(difference - by_hours) >= abs(difference):
            a, b = (
                format_usd(round(Fraction(nano * 3_600_000_000_000, line[ns])))
                for nano, ns in ((billed, "invoice_ns"), (ledger, "ledger_ns"))
            )
            reasons.append(f"price: {a} an hour billed, {b} in the ledger")
    reasons += [f"not on the invoice on {line['days_ledger']} days"] if line["days_ledger"] else []
    reasons += [f"not in the ledger on {line['days_invoice']} days"] if line["days_invoice"] else []
    return "; ".join(reasons) or "the amounts differ"


def tables(made: Mapping[str, Any]) -> Iterator[Element]:
    total = made["total"]
    yield (
        f"Ledger {format_usd(total['ledger_nano'])}, vendor {format_usd(total['effective_nano'])} (billed "
        f"{format_usd(total['billed_nano'])}). Line by line they differ by {format_usd(made['disagreement_nano'])}: "
        f"{'within' if made['within'] else 'beyond'} the tolerance of {made['tolerance']:.4g} of the ledger's amount"
    )
    amounts = (("ledger", "ledger_nano"), ("vendor", "effective_nano"), ("difference", "difference_nano"))
    for title, names in (("By line", ("name", "item", "reason")), ("Days that differ", ("day", "name", "item"))):
        rows = made["lines" if title == "By line" else "days"][:50]
        columns = (*map(Column, names), *(Column(name, "money") for name, _ in amounts))
        values = tuple((*(row[name] for name in names), *(row[field] for _, field in amounts)) for row in rows)
        yield Table(title=title, view=f"{AMORTIZED}, USD, {made['provenance']}", columns=columns, rows=values)
    for other in made["other_charges"]:
        yield f"not compared: {other['category']}, {other['rows']} rows, {other['billed']} billed"
    if made["repeated_rows"]:
        yield f"repeated rows: {', '.join(map(str, made['repeated_rows']))}"
