from __future__ import annotations

from pathlib import Path

import pytest

from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import books
from rose.pricing.closing import index
from rose.pricing.closing.records import postings
from tests.pricing.closing.conftest import BILL_NANO, CLOSE_ID, close


def test_the_books_have_what_the_events_say(closed: Path) -> None:
    (posting,) = postings(closed)[CLOSE_ID]
    with books.connect(closed) as connection:
        for table, wanted in index.rows_of(posting).items():
            stored = connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall()
            assert sorted(map(str, stored)) == sorted(str(tuple(row.values())) for row in wanted), table
        (sums,) = connection.execute("SELECT sum(cost_nano) FROM closed_total").fetchall()
    assert sums == (posting.cost_nano,) == (BILL_NANO,)
    before = (closed / books.BOOKS).read_bytes()
    index.bring_up_to_date(closed)
    assert (closed / books.BOOKS).read_bytes() == before


def test_a_close_stands_although_the_books_cannot_be_changed(fleet: Path) -> None:
    with books.change(fleet):
        pass
    # What a client that writes leaves there.
    log = fleet / f"{books.BOOKS}.wal"
    log.touch()
    with pytest.raises(LedgerError, match=f"{CLOSE_ID}: posting 0 stands, .* a client has opened"):
        close(fleet)
    log.unlink()
    assert list(postings(fleet)) == [CLOSE_ID]
    index.bring_up_to_date(fleet)
    with books.connect(fleet) as connection:
        assert connection.execute("SELECT close_id FROM closed_posting").fetchall() == [(CLOSE_ID,)]


def test_every_table_and_unclear_column_is_explained(closed: Path) -> None:
    with books.connect(closed) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE comment IS NULL").fetchall()
        columns = connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE comment IS NULL AND database_name = 'books'"
        ).fetchall()
    assert tables == [("migration",)]
    ours = {name for table, name in columns if table.startswith("closed") or table == "budget"}
    assert ours == set()
