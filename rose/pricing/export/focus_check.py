"""Whether a FOCUS file keeps FOCUS's rules in every row, and adds up: what validators of single columns cannot see.

The rules are SQL: sql/export/focus_rules.sql for single rows, focus_balance.sql for the purchases and what uses them
up, focus_duplicates.sql for rows that are there twice. A row is counted from 1, its header not among them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

import sql
from rose.ledger import database
from rose.pricing.money import PricingError
from rose.pricing.query import records

_TEXT, _DECIMAL, _INTEGER = "VARCHAR", "DECIMAL(38,12)", "BIGINT"
_DECIMALS = (
    "BilledCost",
    "CommitmentDiscountQuantity",
    "ConsumedQuantity",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "ListCost",
    "ListUnitPrice",
    "PricingQuantity",
    "x_EffectiveUnitPrice",
    "x_MarginalCost",
)
_TEXTS = (
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedUnit",
    "InvoiceId",
    "InvoiceIssuerName",
    "PricingCategory",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_CostBucket",
    "x_LeaseId",
    "x_RunId",
    "x_PriceBookVersion",
    "x_LedgerSeq",
    "x_Provenance",
)
#: DuckDB's type of each column, in no order.
TYPES: Mapping[str, str] = {
    **dict.fromkeys(_DECIMALS, _DECIMAL),
    **dict.fromkeys(_TEXTS, _TEXT),
    "x_PolicyVersion": _INTEGER,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that does not hold: in how many rows, and the numbers of the first of them with what they hold."""

    rule: str
    rows: int
    first: tuple[int, ...] = ()
    value: str | None = None

    def __str__(self) -> str:
        if not self.first:
            return self.rule
        where = f"row{'s' if len(self.first) > 1 else ''} {', '.join(map(str, self.first))}"
        more = f" and {self.rows - len(self.first):,} more" if self.rows > len(self.first) else ""
        held = "" if self.value is None else f" (row {self.first[0]} has {self.value})"
        return f"{where}{more}: {self.rule}{held}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a file holds. `totals` are nano-dollars: `billed`, `effective`, `purchased`, and `bucket/...` of each."""

    rows: int
    totals: Mapping[str, int]
    faults: tuple[Fault, ...]

    def text(self, name: str) -> str:
        """One line for each fault."""
        return "\n".join(f"  {name}, {fault}" for fault in self.faults)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {
            "rows": self.rows,
            "totals": dict(self.totals),
            "faults": [{"rule": f.rule, "rows": f.rows, "first": list(f.first), "value": f.value} for f in self.faults],
        }


def check(path: Path, charges_nano: Mapping[str, int] | None = None) -> Report:
    """Check a FOCUS file of ours, Parquet or CSV; against the charges it was made from too, where they are given.

    `charges_nano` are nano-dollars by bucket. Raises PricingError for a file that cannot be read as what it is called.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise PricingError(f"{path}: a FOCUS file is called .parquet or .csv")
    if not path.is_file():
        raise PricingError(f"{path}: there is no such file")
    with database.connect() as connection, tempfile.TemporaryDirectory(prefix="rose-focus-") as folder:
        try:
            if faults := _of_columns(_columns(connection, path)):
                return Report(0, {}, faults)
            if path.suffix == ".csv":
                # Every rule reads the rows again, and reading text takes longest.
                stored = Path(folder) / "focus.parquet"
                faults = _as_parquet(connection, path, stored)
            else:
                stored = path
            connection.read_parquet(str(stored), file_row_number=True).create_view("stored")
            connection.execute("CREATE TEMP VIEW focus AS SELECT file_row_number + 1 AS row, * FROM stored")
            return _check(connection, charges_nano, faults)
        except duckdb.Error as error:
            raise PricingError(f"{path} cannot be checked: {str(error).splitlines()[0]}") from None


def _check(
    connection: duckdb.DuckDBPyConnection, charges_nano: Mapping[str, int] | None, faults: tuple[Fault, ...]
) -> Report:
    connection.execute(sql.read("export/amounts.sql"))
    faults += _of_rows(connection) + _of_duplicates(connection) + _of_balance(connection)
    sums = _records(connection, "focus_sums")
    buckets = {row["bucket"]: int(row["effective"] or 0) for row in sums if row["bucket"] is not None}
    if charges_nano is not None:
        faults += tuple(
            Fault(
                f"x_CostBucket {bucket} sums to {buckets.get(bucket, 0):,} nano-dollars of EffectiveCost, "
                f"and its charges to {charges_nano.get(bucket, 0):,}",
                0,
            )
            for bucket in sorted(buckets.keys() | charges_nano.keys())
            if buckets.get(bucket, 0) != charges_nano.get(bucket, 0)
        )
    totals = {
        "billed": sum(int(row["billed"] or 0) for row in sums),
        "effective": sum(buckets.values()),
        "purchased": sum(int(row["billed"] or 0) for row in sums if row["bucket"] is None),
        **{f"bucket/{bucket}": nano for bucket, nano in buckets.items()},
    }
    return Report(sum(int(row["rows"]) for row in sums), totals, faults)


def _columns(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, str]:
    """Names and types of the file's columns, in its order; of a CSV, every type is the one the name demands."""
    read = "read_parquet($path)" if path.suffix == ".parquet" else "read_csv($path, all_varchar = true, header = true)"
    described = connection.execute(f"DESCRIBE SELECT * FROM {read}", {"path": str(path)}).fetchall()
    return {
        str(name): str(kind) if path.suffix == ".parquet" else TYPES.get(str(name), _TEXT)
        for name, kind, *_ in described
    }


def _of_columns(columns: Mapping[str, str]) -> tuple[Fault, ...]:
    names = list(columns)
    custom = [name.startswith("x_") for name in names]
    texts = [f"there is no column {name}" for name in TYPES if name not in columns]
    texts += [f"column {name} is none of FOCUS 1.2's or ours" for name in names if name not in TYPES]
    texts += [
        f"column {name} is {columns[name]} and must be {kind}"
        for name, kind in TYPES.items()
        if name in columns and columns[name] != kind
    ]
    if custom != sorted(custom):
        texts.append("columns that begin with x_ must come after FOCUS's own")
    return tuple(Fault(text, 0) for text in texts)


def _as_parquet(connection: duckdb.DuckDBPyConnection, path: Path, to: Path) -> tuple[Fault, ...]:
    """Write a CSV's rows as Parquet; returns what is not written as its column demands: there it counts as null."""
    shapes = {_DECIMAL: r"-?\d{1,26}\.\d{1,12}", _INTEGER: r"-?\d{1,18}"}
    numbers = [name for name, kind in TYPES.items() if kind in shapes]
    good = {name: f"regexp_full_match({name}, '{shapes[TYPES[name]]}')" for name in numbers}
    connection.read_csv(str(path), header=True, all_varchar=True).create_view("written")
    # Not TRY_CAST: DuckDB has the reader do it, which then fails on what cannot be cast.
    casts = ", ".join(f"CASE WHEN {good[name]} THEN {name}::{TYPES[name]} END AS {name}" for name in numbers)
    connection.sql(f"SELECT * REPLACE ({casts}) FROM written").write_parquet(str(to))
    counted = ", ".join(f"count(*) FILTER (NOT {good[name]}), min(row) FILTER (NOT {good[name]})" for name in numbers)
    counts = connection.execute(
        f"SELECT {counted} FROM (SELECT row_number() OVER () AS row, * FROM written)"
    ).fetchall()[0]
    decimals = {name: " with decimals" if TYPES[name] == _DECIMAL else "" for name in numbers}
    return tuple(
        Fault(f"{name} must be written as a number{decimals[name]}", rows, (first,))
        for name, rows, first in zip(numbers, counts[::2], counts[1::2], strict=True)
        if rows
    )


def _of_rows(connection: duckdb.DuckDBPyConnection) -> tuple[Fault, ...]:
    # Counting what breaks a rule takes several times as long as finding out whether anything does.
    connection.execute("CREATE OR REPLACE TEMP MACRO breach(row, bad) AS min(CASE WHEN bad THEN row END)")
    if not any(_records(connection, "focus_rules")[0].values()):
        return ()
    connection.execute(
        "CREATE OR REPLACE TEMP MACRO breach(row, bad) AS "
        "{'rows': count(*) FILTER (bad), 'first': min(row, 5) FILTER (bad)}"
    )
    faults = []
    for rule, breaches in _records(connection, "focus_rules")[0].items():
        if breaches["rows"]:
            column, first = rule.split(" ", 1)[0], tuple(breaches["first"])
            held = connection.execute(f"SELECT {column}::VARCHAR FROM focus WHERE row = ?", [first[0]]).fetchall()
            faults.append(Fault(rule, breaches["rows"], first, held[0][0] or "no value"))
    return tuple(faults)


def _of_duplicates(connection: duckdb.DuckDBPyConnection) -> tuple[Fault, ...]:
    return tuple(
        Fault(f"charges for the same as row {row['first']}", int(row["rows"]), tuple(map(int, row["again"])))
        for row in _records(connection, "focus_duplicates")
    )


def _of_balance(connection: duckdb.DuckDBPyConnection) -> tuple[Fault, ...]:
    faults = []
    for row in _records(connection, "focus_balance"):
        subject = f"the hour of {row['CommitmentDiscountId']} from {row['ChargePeriodStart']}, run {row['x_RunId']}"
        if row["purchased"] != row["used"]:
            text = f"was purchased for {row['purchased']}, and EffectiveCost of its usage sums to {row['used']}"
        else:
            text = f"has {row['purchased_hours']} hours purchased, and {row['used_hours']} used and unused"
        faults.append(Fault(f"{subject}, {text}", 1, (int(row["first"]),)))
    return tuple(faults)


def _records(connection: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    return records(connection.execute(sql.read(f"export/{name}.sql")))
