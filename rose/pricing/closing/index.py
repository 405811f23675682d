"""The books' tables of closes and corrections: what the ledger's events say, for SQL.

The events are what counts; rows that an interrupted process did not write are written by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import books
from rose.pricing import query
from rose.pricing.closing import store
from rose.pricing.closing.period import naive, of_month
from rose.pricing.closing.records import Budget, Posting, postings
from rose.pricing.closing.records import budgets as budgets_of

#: The tables that say what the events of postings say, and the columns that tell their rows apart.
KEYS: Mapping[str, tuple[str, ...]] = {
    "closed_posting": ("close_id", "correction"),
    "closed_total": ("close_id", "correction", "kind", "bucket"),
    "closed_writer": ("close_id", "correction", "writer"),
    "closed_cover": ("close_id", "correction", "covered_id", "from_at"),
}


def bring_up_to_date(root: Path) -> None:
    """Write what the books lack of the ledger's events. Raises LedgerError; then the books are as they were."""
    posted, budgets = [posting for entries in postings(root).values() for posting in entries], budgets_of(root)
    if not posted and not budgets:
        return
    known: set[tuple[str, int]] = set()
    set_before: set[tuple[Any, ...]] = set()
    if (root / books.BOOKS).exists():
        with books.connect(root) as connection:
            known = set(connection.execute("SELECT close_id, correction FROM closed_posting").fetchall())
            set_before = set(connection.execute("SELECT team, month, set_at FROM budget").fetchall())
    lacking = [posting for posting in posted if (posting.close_id, posting.number) not in known]
    rows = [budget_row(budget) for budget in budgets]
    new = [row for row in rows if (row["team"], row["month"], row["set_at"]) not in set_before]
    if lacking or new:
        with books.change(root) as connection:
            for posting in lacking:
                _add(connection, posting, store.book_of(root, posting).text)
            query.insert(connection, "budget", [list(row.values()) for row in new])


def rows_of(posting: Posting) -> dict[str, list[dict[str, Any]]]:
    """The rows of a posting in each table of `KEYS`, by column, in the order of the table's columns."""
    key = {"close_id": posting.close_id, "correction": posting.number}
    row = key | {
        "provenance": posting.provenance,
        "from_at": naive(posting.from_ns),
        "to_at": naive(posting.to_ns),
        "posted_at": naive(posting.posted_ns),
        "posted_by": posting.posted_by,
        "rose_version": posting.rose_version,
        "verified": posting.verified,
        "reason": posting.reason,
        "open_runs": list(posting.open_runs),
        "book_sha256": posting.book.sha256,
        "row_count": posting.rows,
        "cost_nano": posting.cost_nano,
        "file": posting.rows_file,
        "file_sha256": posting.files[posting.rows_file],
    }
    amounts = ("kind", "bucket", "ns", "tokens", "bytes", "energy_mw_ns", "cost_nano")
    return {
        "closed_posting": [row],
        "closed_total": [key | {name: total[name] for name in amounts} for total in posting.totals],
        "closed_writer": [
            key | {"writer": writer, "last_seq": seq, "sha256": sha256}
            for writer, (seq, sha256) in posting.watermark.items()
        ],
        "closed_cover": [
            key
            | {
                "covered_id": part.close_id,
                "covered_correction": part.correction,
                "from_at": naive(part.from_ns),
                "to_at": naive(part.to_ns),
                "before_nano": part.before_nano,
                "cost_nano": part.cost_nano,
            }
            for part in posting.covers
        ],
    }


def budget_row(budget: Budget) -> dict[str, Any]:
    """The row of a budget, by column, in the order of the table's columns."""
    return {
        "team": budget.team,
        "month": naive(of_month(budget.month).from_ns).date(),
        "budget_nano": budget.budget_nano,
        "currency": budget.currency,
        "set_at": naive(budget.set_us * 1000),
        "set_by": budget.set_by,
    }


def follow(root: Path, posting: Posting) -> None:
    """The same, just after a posting. Raises LedgerError that says that the posting stands all the same."""
    try:
        bring_up_to_date(root)
    except LedgerError as error:
        raise LedgerError(
            f"{posting.close_id}: posting {posting.number} stands, and the next command writes it into the books; now "
            f"they could not be changed: {error}"
        ) from error


def _add(connection: duckdb.DuckDBPyConnection, posting: Posting, book_text: str) -> None:
    book = posting.book
    values = [book.sha256, book.name, book.version, book.currency, book_text]
    connection.execute("INSERT OR IGNORE INTO price_book VALUES (?, ?, ?, ?, ?, now()::TIMESTAMP)", values)
    for table, rows in rows_of(posting).items():
        query.insert(connection, table, [list(row.values()) for row in rows])
