"""A vendor's invoice held against the ledger: by device and day, what is charged on one side, the other, or both.

Compared are the amortized charges of the ledger and the EffectiveCost of the invoice's usage, which has the same
meaning: what the days cost, whenever they are paid. BilledCost, the amount of the invoice, stands beside it. The sums
are made in DuckDB within a bounded memory (sql/reconcile/), in whole nano-units of the ledger's currency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

import sql
from rose.clock import utc
from rose.pricing.closing.period import NS_PER_DAY, Period, moment, naive
from rose.pricing.figures import Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError
from rose.pricing.query import records
from rose.pricing.reconcile import invoice, ledger
from rose.pricing.reconcile.invoice import InvoiceFacts
from rose.pricing.spend import currency as currencies
from rose.pricing.spend.currency import Rate

DEVICE_TIME = "device time"
#: Lines and single days that are handed out, those that differ most first; sums are of all.
_LINES_MAX = 10_000
#: Sums that are made at once: some hundred bytes each, of `invoice.MEMORY` in all.
_SUMS_AT_ONCE = 500_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """Both sides of a sum: nano-units of the currency, and nanoseconds of device time, None where unknown.

    `again_nano` and `corrections_nano` are parts of `effective_nano`: of rows that repeat another one, and of the
    vendor's own corrections.
    """

    ledger_nano: int
    ledger_ns: int
    billed_nano: int
    effective_nano: int
    invoice_ns: int | None
    again_nano: int
    corrections_nano: int

    @property
    def difference_nano(self) -> int:
        """What the vendor charges beyond the ledger."""
        return self.effective_nano - self.ledger_nano

    @property
    def share(self) -> float | None:
        """The difference as a share of the ledger's amount; None where that is 0."""
        return self.difference_nano / self.ledger_nano if self.ledger_nano else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Line(Amounts):
    """What is charged for one thing over the period.

    `kind` is `device` (`name` is its hardware), `devices` (a pattern of the price book), `class`, or `unknown`: what
    the invoice has and nothing in the ledger fits. `device_ids` are the first names that runs gave to its devices.
    """

    kind: str
    name: str
    item: str
    device_ids: tuple[str, ...]
    #: Days on which both, only the ledger and only the invoice charge for it.
    days_both: int
    days_ledger: int
    days_invoice: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Day(Amounts):
    """A UTC day of everything, or of the line that `kind`, `name` and `item` name."""

    day: date
    kind: str | None = None
    name: str | None = None
    item: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """Charges of the invoice in the period that are of no device: a ChargeCategory, or an item of the ledger alone."""

    category: str
    rows: int
    billed_nano: int
    effective_nano: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconciliation:
    """The answer. `total` sums all lines and all days; `disagreement_nano` sums what the lines differ by, unsigned."""

    stamp: Stamp
    invoice: InvoiceFacts
    #: What the invoice's currency was converted at; None where it is the ledger's.
    rate: Rate | None
    tolerance: Fraction
    total: Amounts
    disagreement_nano: int
    lines: tuple[Line, ...]
    #: Of all, of which `lines` are those that differ most.
    line_count: int
    days: tuple[Day, ...]
    #: Of lines, only those that differ beyond the tolerance.
    device_days: tuple[Day, ...]
    #: Days of the period on which the invoice charges nothing at all.
    uncovered: tuple[date, ...]
    apart: tuple[Apart, ...]
    #: Items of the ledger that the invoice has nothing of: another vendor's.
    not_invoiced: tuple[tuple[str, int], ...]
    outside: Apart
    #: (row, the row that it repeats) and (row, text of its amount): the first of them, and how many there are.
    repeated: tuple[tuple[int, int], ...]
    repeated_count: int
    negative: tuple[tuple[int, str], ...]
    negative_count: int

    @property
    def within(self) -> bool:
        """Whether both sides agree within the tolerance, device by device."""
        return self.disagreement_nano <= self.tolerance * abs(self.total.ledger_nano)

    @property
    def disagreement_share(self) -> float | None:
        """None where the ledger has no charge."""
        return self.disagreement_nano / abs(self.total.ledger_nano) if self.total.ledger_nano else None


def reconcile(
    root: Path,
    path: Path,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    tolerance: Fraction = Fraction(5, 1000),
    classes: Sequence[str] = (),
    provenance: str | None = None,
    allow_unverified: bool = False,
) -> Reconciliation:
    """Compare the invoice at `path` with the charges of whole UTC days, of all devices or those of some classes.

    Raises PricingError for a file that cannot be used, one that has no charge in the period, a currency without a rate,
    and all that prevents the period from being priced; PriceBookError; LedgerError.
    """
    if period.from_ns % NS_PER_DAY or period.to_ns % NS_PER_DAY:
        raise PricingError("an invoice is compared by UTC day: give a period of whole UTC days")
    # What is wrong with the file is said before a long period is priced.
    with invoice.opened(path) as (connection, facts):
        charged, stamp = ledger.charges(
            root, period, price_book, classes=classes, provenance=provenance, allow_unverified=allow_unverified
        )
        return compare(connection, facts, charged, stamp, _book(root, period, price_book, stamp.provenance), tolerance)


def compare(
    connection: duckdb.DuckDBPyConnection,
    facts: InvoiceFacts,
    charged: pl.DataFrame,
    stamp: Stamp,
    book: PriceBook | None = None,
    tolerance: Fraction = Fraction(5, 1000),
) -> Reconciliation:
    """Compare an opened invoice with charges as `ledger.charges` gives them; `book` says what its resources are.

    Raises PricingError for an invoice without a charge in the period, and for a currency without a rate.
    """
    period = Period(stamp.from_ns, stamp.to_ns)
    rate = _rate(book, facts.currency, stamp)
    _prepare(connection, period, charged, book, rate)
    for step in ("20_again", "30_days"):
        connection.execute(sql.read(f"reconcile/{step}.sql"))
    _by_days(connection, "35_days", period)
    if not connection.execute("SELECT count(*) FROM invoice_day").fetchall()[0][0]:
        raise PricingError(
            f"{facts.path} has charges from {facts.begins} to {facts.ends}, and none of them from "
            f"{utc(period.from_ns)} to {utc(period.to_ns)}; give the invoice of that period, or another --period"
        )
    for step in ("40_match", "50_compare"):
        connection.execute(sql.read(f"reconcile/{step}.sql"))
    _by_days(connection, "55_cells", period)
    _by_lines(connection, "57_sums")
    return _answer(connection, stamp, facts, rate, tolerance, period)


def _by_days(connection: duckdb.DuckDBPyConnection, step: str, period: Period) -> None:
    """Run a step for so many days at once that what it sums up fits in memory."""
    things = int(connection.execute("SELECT count(*) FROM thing").fetchall()[0][0])
    block_ns = max(1, _SUMS_AT_ONCE // max(1, things)) * NS_PER_DAY
    for from_ns in range(period.from_ns, period.to_ns, block_ns):
        for name, ns in (("block_from", from_ns), ("block_to", min(from_ns + block_ns, period.to_ns))):
            connection.execute(f"SET VARIABLE {name} = $value::TIMESTAMP", {"value": naive(ns)})
        connection.execute(sql.read(f"reconcile/{step}.sql"))


def _by_lines(connection: duckdb.DuckDBPyConnection, step: str) -> None:
    """The same for so many lines at once."""
    lines = int(connection.execute("SELECT count(*) FROM line").fetchall()[0][0])
    for first in range(1, lines + 1, _SUMS_AT_ONCE):
        for name, line in (("line_from", first), ("line_to", first + _SUMS_AT_ONCE)):
            connection.execute(f"SET VARIABLE {name} = $value::BIGINT", {"value": line})
        connection.execute(sql.read(f"reconcile/{step}.sql"))


def _book(root: Path, period: Period, named: str | PriceBook | None, provenance: str) -> PriceBook | None:
    """The book that says what a vendor's resources are; a closed period needs none."""
    try:
        return choice.choose(root, named, from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance)
    except choice.NoPriceBookError:
        return None


def _rate(book: PriceBook | None, currency: str, stamp: Stamp) -> Rate | None:
    """What a unit of the invoice's currency is in the ledger's; None where they are the same."""
    if currency == stamp.currency:
        return None
    currencies_text = f"the invoice is in {currency} and the ledger in {stamp.currency}"
    if book is None:
        raise PricingError(
            f"{currencies_text}: name a price book that has an [[exchange_rate]] for {currency} with `-b FILE`"
        )
    try:
        return currencies.rate_of(book, currency, Period(stamp.from_ns, stamp.to_ns))
    except PriceBookError as error:
        raise PriceBookError(f"{currencies_text}: {error}") from None


def _prepare(
    connection: duckdb.DuckDBPyConnection,
    period: Period,
    charged: pl.DataFrame,
    book: PriceBook | None,
    rate: Rate | None,
) -> None:
    """Make the variables and tables that sql/reconcile/ reads beside the invoice."""
    exact = Fraction(rate.usd_per_unit) if rate else Fraction(1)
    for name, value in (
        ("from_day", naive(period.from_ns)),
        ("to_day", naive(period.to_ns)),
        ("rate_numerator", exact.numerator),
        ("rate_denominator", exact.denominator),
    ):
        kind = "TIMESTAMP" if isinstance(value, datetime) else "HUGEINT"
        connection.execute(f"SET VARIABLE {name} = $value::{kind}", {"value": value})
    connection.register("charged", charged)
    connection.execute("CREATE TABLE ledger_day AS FROM charged")
    connection.register("mapping", _mapping(book))
    connection.execute("CREATE TABLE vendor_resource AS FROM mapping")


def _mapping(book: PriceBook | None) -> pl.DataFrame:
    """The book's [[vendor_resource]] entries; a name without `*`, `?` or `[` is one device's."""
    rows = []
    for place, entry in enumerate(book.vendor_resource if book else ()):
        target = entry.device or entry.hardware or entry.device_class or ""
        kind = "class" if entry.device_class else "devices" if any(mark in target for mark in "*?[") else "device"
        first, end = (naive(ns) if ns is not None else None for ns in (entry.from_ns, entry.to_ns))
        rows.append(
            (
                place,
                entry.resource,
                entry.sku,
                kind,
                target,
                entry.device is not None,
                entry.devices,
                entry.item,
                first or datetime(1, 1, 1),
                end or datetime(9999, 12, 31),
            )
        )
    schema: dict[str, Any] = {
        "place": pl.Int64,
        "resource": pl.String,
        "sku": pl.String,
        "kind": pl.String,
        "target": pl.String,
        "by_name": pl.Boolean,
        "devices": pl.Int64,
        "item": pl.String,
        "from_day": pl.Datetime("us"),
        "to_day": pl.Datetime("us"),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _answer(
    connection: duckdb.DuckDBPyConnection,
    stamp: Stamp,
    facts: InvoiceFacts,
    rate: Rate | None,
    tolerance: Fraction,
    period: Period,
) -> Reconciliation:
    def query(name: str) -> list[dict[str, Any]]:
        return records(connection.execute(sql.read(f"reconcile/{name}.sql")))

    connection.execute("SET VARIABLE tolerance = $share::DOUBLE", {"share": float(tolerance)})
    connection.execute("SET VARIABLE rows_shown = $rows::BIGINT", {"rows": _LINES_MAX})
    lines = [Line(**row | {"device_ids": tuple(row["device_ids"])}) for row in query("60_lines")]
    (whole,) = query("65_total")
    disagreement, count = int(whole.pop("disagreement_nano")), int(whole.pop("line_count"))
    days = [Day(**row) for row in query("70_by_day")]
    outside, *apart = (Apart(**row) for row in query("80_apart"))
    repeated, negative = query("90_repeated"), query("95_negative")
    covered = {day for (day,) in connection.execute("SELECT DISTINCT day::DATE FROM invoice_day").fetchall()}
    every = [moment(ns).date() for ns in range(period.from_ns, period.to_ns, NS_PER_DAY)]
    return Reconciliation(
        stamp=stamp,
        invoice=facts,
        rate=rate,
        tolerance=tolerance,
        total=Amounts(**whole),
        disagreement_nano=disagreement,
        lines=tuple(lines),
        line_count=count,
        days=tuple(days),
        device_days=tuple(Day(**row) for row in query("75_device_days")),
        uncovered=tuple(day for day in every if day not in covered),
        apart=tuple(apart),
        not_invoiced=tuple((row["item"], int(row["ledger_nano"])) for row in query("85_not_invoiced")),
        outside=outside,
        repeated=tuple((row["row"], row["first"]) for row in repeated),
        repeated_count=repeated[0]["count"] if repeated else 0,
        negative=tuple((row["row"], row["cell"]) for row in negative),
        negative_count=negative[0]["count"] if negative else 0,
    )
