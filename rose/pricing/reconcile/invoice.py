"""Reading a vendor's invoice: a FOCUS 1.0 to 1.2 file of any provider, CSV or Parquet, checked cell by cell.

The file is of strangers. It is read by one thread at a time into a database in a temporary folder, within a bounded
memory; what a cell holds is text until it has been checked. A row is counted from 1, the header not among them.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

import sql
from rose.ledger import catalog, database
from rose.pricing.money import PricingError
from rose.pricing.query import records

#: Columns without which a charge is of nothing, and those that a file may lack.
REQUIRED = ("BilledCost", "BillingCurrency", "ChargeCategory", "ChargePeriodEnd", "ChargePeriodStart", "EffectiveCost")
OPTIONAL = (
    "ChargeClass",
    "ConsumedQuantity",
    "ConsumedUnit",
    "InvoiceId",
    "PricingQuantity",
    "PricingUnit",
    "ResourceId",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "Tags",
)
MEMORY = "512MB"
#: The longest line of a CSV, and the longest header: no row of charges comes near.
_LINE_BYTES_MAX, _HEADER_BYTES_MAX = 2_000_000, 1_000_000
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_FAULTS_SHOWN = 5
#: What is wrong with a line, among much that DuckDB says of it.
_CSV_FAULTS = r"^(Expected Number of Columns.*|Maximum line size.*|Value with unterminated.*|.*not utf-8.*)$"
#: What the file is called in the database's folder.
_LINK = "invoice"


@dataclass(frozen=True, kw_only=True, slots=True)
class InvoiceFacts:
    """What the whole file is: its one currency, and the time that its charges are of, ISO 8601 UTC."""

    path: Path
    rows: int
    currency: str
    begins: str
    ends: str
    invoice_ids: tuple[str, ...]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, InvoiceFacts]]:
    """A database with the rows of the file in `invoice_row` (sql/reconcile/10_rows.sql), for as long as it is open.

    Raises PricingError for a file that is none, whose columns are missing or there twice, or of which a cell cannot be
    used: named by column, row and value.
    """
    if not path.is_file():
        raise PricingError(f"{path}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="rose-reconcile-") as folder, _database(Path(folder)) as connection:
        try:
            try:
                _read(connection, path, Path(folder))
            except (duckdb.OutOfMemoryException, PricingError):
                raise
            except duckdb.Error as error:
                text = _explained(error).replace(str(Path(folder) / _LINK), path.name)
                raise PricingError(f"{path} cannot be read: {text}") from None
            yield connection, _facts(connection, path)
        except duckdb.OutOfMemoryException as error:
            raise PricingError(
                f"{path} cannot be compared within {MEMORY} of memory and the disk space of {tempfile.gettempdir()}: "
                f"{_first_line(error)}; make room, or set TMPDIR to a folder with more"
            ) from None


@contextlib.contextmanager
def _database(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    # Nothing in a file can make it read another one, or fetch anything.
    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "temp_directory": str(folder / "spill"),
        "threads": "2",
    }
    with database.connect(str(folder / "work.duckdb"), config=options) as connection:
        connection.execute("SET TimeZone = 'UTC'; SET autoinstall_known_extensions = false")
        yield connection


def _read(connection: duckdb.DuckDBPyConnection, path: Path, folder: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(4)
    # A name with * or [ in it would be taken for a pattern of names.
    link = folder / _LINK
    link.symlink_to(path.resolve())
    if magic == _PARQUET:
        described = connection.read_parquet(str(link), file_row_number=True)
        names = [name for name in described.columns if name != "file_row_number"]
        source, row = f"read_parquet({catalog.quoted(str(link))}, file_row_number = true)", "file_row_number + 1"
        texts = {
            name: f"to_json({_quoted(name)})::VARCHAR"
            if kind.id in ("map", "struct")
            else f"nullif({_quoted(name)}::VARCHAR, '')"
            for name, kind in zip(described.columns, described.types, strict=True)
        }
    else:
        names = _header(path, compressed=magic.startswith(_GZIP))
        columns = ", ".join(f"{catalog.quoted(name)}: 'VARCHAR'" for name in names)
        source = (
            f"read_csv({catalog.quoted(str(link))}, auto_detect = false, header = true, delim = ',', quote = '\"', "
            f"escape = '\"', columns = {{{columns}}}, nullstr = ['', 'NULL', 'null'], allow_quoted_nulls = true, "
            f"max_line_size = {_LINE_BYTES_MAX}, compression = '{'gzip' if magic.startswith(_GZIP) else 'none'}')"
        )
        row, texts = "row_number() OVER ()", {name: _quoted(name) for name in names}
    _check_columns(path, names)
    cells = [
        f"{texts[name]} AS {name}" if name in names else f"NULL::VARCHAR AS {name}" for name in (*REQUIRED, *OPTIONAL)
    ]
    connection.execute(
        f"CREATE TEMP VIEW written AS SELECT {row} AS row, hash({', '.join(map(_quoted, names))}) AS fingerprint, "
        f"{', '.join(cells)} FROM {source}"
    )
    connection.execute(sql.read("reconcile/10_rows.sql"))


def _header(path: Path, *, compressed: bool) -> list[str]:
    """Names of a CSV's columns. Raises PricingError where the first line is none."""
    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            line = file.readline(_HEADER_BYTES_MAX)
        text = line.removeprefix(codecs.BOM_UTF8).decode()
        return next(csv.reader(io.StringIO(text), strict=True), [])
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise PricingError(f"{path} is neither CSV in UTF-8 nor Parquet, as FOCUS has it: {error}") from None


def _check_columns(path: Path, names: Sequence[str]) -> None:
    # DuckDB takes names that differ in case for one.
    folded = [name.casefold() for name in names]
    if twice := sorted({name for name in names if folded.count(name.casefold()) > 1}):
        raise PricingError(f"{path} has columns twice: {', '.join(twice)}; keep one of each")
    missing = [name for name in REQUIRED if name not in names]
    if {"ResourceId", "SkuId"}.isdisjoint(names):
        missing.append("ResourceId (or SkuId)")
    if missing:
        first = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
        raise PricingError(
            f"{path} lacks the FOCUS columns {', '.join(missing)}; it has {first or 'none'}. Give the cost and usage "
            "file, FOCUS 1.0 to 1.2, as the vendor exports it"
        )


def _facts(connection: duckdb.DuckDBPyConnection, path: Path) -> InvoiceFacts:
    faults = connection.execute(
        "SELECT row, fault.rule, fault.cell, count(*) OVER () FROM invoice_row WHERE fault IS NOT NULL "
        f"ORDER BY row LIMIT {_FAULTS_SHOWN}"
    ).fetchall()
    if faults:
        lines = [f"  row {row}: {rule}, and is {cell!r}" for row, rule, cell, _ in faults]
        more = f"\n  and {faults[0][3] - len(faults):,} rows more" if faults[0][3] > len(faults) else ""
        text = f"{path} cannot be reconciled (row 1 is the first below the header):\n"
        raise PricingError(text + "\n".join(lines) + more)
    (facts,) = records(connection.execute(sql.read("reconcile/15_facts.sql")))
    if not facts["rows"]:
        raise PricingError(f"{path} has no rows below its header")
    if len(facts["currencies"]) > 1:
        raise PricingError(
            f"{path}: BillingCurrency is {' and '.join(facts['currencies'])}; reconcile the rows of each by themselves"
        )
    return InvoiceFacts(
        path=path,
        rows=facts["rows"],
        currency=facts["currencies"][0],
        begins=facts["begins"],
        ends=facts["ends"],
        invoice_ids=tuple(facts["invoice_ids"]),
    )


def _explained(error: duckdb.Error) -> str:
    """What DuckDB says of a CSV, without the advice for those who call it."""
    text = str(error)
    line = re.search(r"CSV Error on Line: (\d+)", text)
    what = re.search(_CSV_FAULTS, text, re.MULTILINE)
    if line is None:
        return what[0] if what else _first_line(error)
    return f"line {line[1]} of the file: {what[0] if what else 'it is no CSV'}"


def _first_line(error: duckdb.Error) -> str:
    return str(error).splitlines()[0]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
