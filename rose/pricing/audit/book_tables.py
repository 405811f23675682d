"""Whether the tables of `books.duckdb` say what the ledger's events say: every row and every column of them.

`price_day` and `report_export` are not among them: nothing rests on them, and the jobs `price` and `report` work them
out again from the ledger.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rose.ledger.upkeep import books
from rose.pricing import query
from rose.pricing.closing import index
from rose.pricing.closing.records import Budget, Posting

Row = Mapping[str, Any]


def faults(root: Path, posted: Sequence[Posting], budgets: Iterable[Budget]) -> Iterator[str]:
    """What is wrong with the tables, each naming the row and the column. Raises LedgerError if they cannot be read."""
    if not (root / books.BOOKS).exists():
        if posted:
            yield f"{books.BOOKS} is gone, and the ledger's events say what was posted to it"
        return
    with books.connect(root) as connection:
        for table, keys in index.KEYS.items():
            wanted = [row for posting in posted for row in index.rows_of(posting)[table]]
            stored = query.records(connection.execute(f"SELECT * FROM {table}"))
            yield from _differences(table, keys, wanted, stored)
        yield from _price_books(query.records(connection.execute("SELECT * FROM price_book")), posted)
        yield from _budgets(query.records(connection.execute("SELECT * FROM budget")), budgets)


def _differences(table: str, keys: Sequence[str], wanted: Iterable[Row], stored: Iterable[Row]) -> Iterator[str]:
    left = {tuple(row[key] for key in keys): row for row in stored}
    for row in wanted:
        key = tuple(row[name] for name in keys)
        name = f"{table} {' '.join(map(str, key))}"
        if (stored_row := left.pop(key, None)) is None:
            yield f"{books.BOOKS} has no {name}, which the ledger's events say was posted"
            continue
        for column, value in row.items():
            if stored_row[column] != value:
                yield f"{books.BOOKS}: {column} of {name} is {stored_row[column]}, and the ledger's event says {value}"
    for key in left:
        yield f"{books.BOOKS} has {table} {' '.join(map(str, key))}, of which no event of the ledger speaks"


def _price_books(stored: Iterable[Row], posted: Iterable[Posting]) -> Iterator[str]:
    texts = {row["sha256"]: row for row in stored}
    for sha256, row in texts.items():
        if hashlib.sha256(row["toml"].encode()).hexdigest() != sha256:
            yield f"{books.BOOKS}: the text of price_book {row['name']} {row['version']} is not that of {sha256[:12]}"
            continue
        header = tomllib.loads(row["toml"])
        for column in ("name", "version", "currency"):
            if row[column] != header[column]:
                yield (
                    f"{books.BOOKS}: {column} of price_book {sha256[:12]} is {row[column]}, and its text says "
                    f"{header[column]}"
                )
    for posting in posted:
        if posting.book.sha256 not in texts:
            yield f"{books.BOOKS} has no price_book {posting.book.sha256[:12]}, which priced {posting.name}"


def _budgets(stored: Iterable[Row], budgets: Iterable[Budget]) -> Iterator[str]:
    wanted = [index.budget_row(budget) for budget in budgets]
    keys = ("team", "month", "set_at")
    known = {tuple(row[key] for key in keys) for row in wanted}
    rows = list(stored)
    yield from _differences("budget", keys, wanted, [row for row in rows if tuple(row[key] for key in keys) in known])
    newest: dict[tuple[str, Any], Row] = {}
    for row in sorted(rows, key=lambda row: row["set_at"]):
        newest[row["team"], row["month"]] = row
    for row in newest.values():
        if tuple(row[key] for key in keys) not in known:
            month = f"{row['month']:%Y-%m}"
            yield (
                f"{books.BOOKS}: no event of the ledger speaks of the budget of {row['team']} for {month}; set it "
                f"again with `rose books budget set`, which records it"
            )
