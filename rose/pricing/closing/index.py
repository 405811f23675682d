"""The books' tables of closes and corrections: what the ledger's events say, for SQL.

The events are what counts; rows that an interrupted process did not write are written by the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import books
from rose.pricing import query
from rose.pricing.closing import store
from rose.pricing.closing.period import naive
from rose.pricing.closing.records import Posting, postings


def known(root: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What the books say of each posting, by close and number. Raises LedgerError if they cannot be read."""
    if not (root / books.BOOKS).exists():
        return {}
    with books.connect(root) as connection:
        return {(row["close_id"], row["correction"]): row for row in query.rows(connection, "closing/known_postings")}


def bring_up_to_date(root: Path) -> None:
    """Write what the books lack of the ledger's postings. Raises LedgerError; then the books are as they were."""
    there = known(root)
    lacking = [
        posting for of in postings(root).values() for posting in of if (posting.close_id, posting.number) not in there
    ]
    if lacking:
        with books.change(root) as connection:
            for posting in lacking:
                _add(connection, posting, store.book_of(root, posting).text)


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
    book, key = posting.book, (posting.close_id, posting.number)
    said = [book.sha256, book.name, book.version, book.currency, book_text]
    connection.execute("INSERT OR IGNORE INTO price_book VALUES (?, ?, ?, ?, ?, now()::TIMESTAMP)", said)
    row = [
        *key, posting.provenance, naive(posting.from_ns), naive(posting.to_ns), naive(posting.posted_ns),
        posting.posted_by, posting.rose_version, posting.verified, posting.reason, list(posting.open_runs), book.sha256,
        posting.rows, posting.cost_nano, posting.rows_file, posting.files[posting.rows_file],
    ]  # fmt: skip
    query.insert(connection, "closed_posting", [row])
    amounts = ("kind", "bucket", "ns", "tokens", "bytes", "energy_mw_ns", "cost_nano")
    query.insert(connection, "closed_total", [[*key, *(total[name] for name in amounts)] for total in posting.totals])
    writers = [[*key, writer, seq, sha256] for writer, (seq, sha256) in posting.watermark.items()]
    query.insert(connection, "closed_writer", writers)
