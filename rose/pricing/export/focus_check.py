"""The check that FOCUS rows follow FOCUS's rules and add up. Row 1 is the first below the header."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

import sql
from rose.ledger.files import database
from rose.pricing.query import records


@dataclass(frozen=True, slots=True)
class Fault:
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
class FocusSums:
    """The sums of FOCUS rows. `totals` has nano-dollars: `billed`, `effective`, `purchased` and `bucket/<name>`."""

    rows: int
    totals: Mapping[str, int]
    faults: tuple[Fault, ...]


def check(path: Path, charges_nano: Mapping[str, int]) -> FocusSums:
    with database.connect() as connection:
        connection.read_parquet(str(path), file_row_number=True).create_view("stored")
        connection.execute("CREATE TEMP VIEW focus AS SELECT file_row_number + 1 AS row, * FROM stored")
        connection.execute(sql.read("export/amounts.sql"))
        faults = (*_of_rows(connection), *_of_sums(connection))
        sums = _records(connection, "focus_sums")
    buckets = {row["bucket"]: int(row["effective"] or 0) for row in sums if row["bucket"] is not None}
    for bucket in sorted(buckets.keys() | charges_nano.keys()):
        cost, charged = buckets.get(bucket, 0), charges_nano.get(bucket, 0)
        if cost != charged:
            rule = f"x_CostBucket {bucket} sums to {cost:,} nano-dollars of EffectiveCost, and its charges to "
            faults += (Fault(f"{rule}{charged:,}", 0),)
    totals = {
        "billed": sum(int(row["billed"] or 0) for row in sums),
        "effective": sum(buckets.values()),
        "purchased": sum(int(row["billed"] or 0) for row in sums if row["bucket"] is None),
        **{f"bucket/{bucket}": nano for bucket, nano in buckets.items()},
    }
    return FocusSums(sum(int(row["rows"]) for row in sums), totals, faults)


def _of_rows(connection: duckdb.DuckDBPyConnection) -> Iterator[Fault]:
    # Counting breaches takes several times as long as finding whether there is one.
    connection.execute("CREATE OR REPLACE TEMP MACRO breach(row, bad) AS min(CASE WHEN bad THEN row END)")
    if not any(_records(connection, "focus_rules")[0].values()):
        return
    connection.execute(
        "CREATE OR REPLACE TEMP MACRO breach(row, bad) AS "
        "{'rows': count(*) FILTER (bad), 'first': min(row, 5) FILTER (bad)}"
    )
    for rule, breaches in _records(connection, "focus_rules")[0].items():
        if breaches["rows"]:
            column, first = rule.split(" ", 1)[0], tuple(breaches["first"])
            held = connection.execute(f"SELECT {column}::VARCHAR FROM focus WHERE row = ?", [first[0]]).fetchall()
            yield Fault(rule, breaches["rows"], first, held[0][0] or "no value")


def _of_sums(connection: duckdb.DuckDBPyConnection) -> Iterator[Fault]:
    for row in _records(connection, "focus_duplicates"):
        yield Fault(f"charges for the same as row {row['first']}", int(row["rows"]), tuple(map(int, row["again"])))
    for row in _records(connection, "focus_balance"):
        subject = f"the hour of {row['CommitmentDiscountId']} from {row['ChargePeriodStart']}, run {row['x_RunId']}"
        if row["purchased"] != row["used"]:
            text = f"was purchased for {row['purchased']}, and EffectiveCost of its usage sums to {row['used']}"
        else:
            text = f"has {row['purchased_hours']} hours purchased, and {row['used_hours']} used and unused"
        yield Fault(f"{subject}, {text}", 1, (int(row["first"]),))


def _records(connection: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    return records(connection.execute(sql.read(f"export/{name}.sql")))
