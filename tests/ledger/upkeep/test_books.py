from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rose.ledger import layout
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import books
from rose.ledger.upkeep.books import Migration

FIRST = Migration(1, "first", "CREATE TABLE a(x INTEGER);")
SECOND = Migration(2, "second", "ALTER TABLE a ADD COLUMN y INTEGER DEFAULT 7; CREATE TABLE b(z INTEGER);")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return layout.create(tmp_path / "ledger")


def read(root: Path, query: str) -> list[tuple[object, ...]]:
    with duckdb.connect(root / books.BOOKS, read_only=True) as connection:
        return connection.execute(query).fetchall()


def names(root: Path) -> set[str]:
    """What lies in the ledger beside its marker and its locks."""
    return {path.name for path in root.iterdir()} - {"ledger.json", "locks"}


def test_fresh_books_have_every_table_and_can_be_read_by_any_client(root: Path) -> None:
    with pytest.raises(LedgerError, match="is not there yet; `rose jobs run price"):
        with books.connect(root):
            pass
    with books.change(root) as connection:
        connection.execute("INSERT INTO price_book VALUES ('s', 'n', '1', 'USD', 'text', now()::TIMESTAMP)")
    assert names(root) == {books.BOOKS}
    tables = {name for (name,) in read(root, "SELECT table_name FROM duckdb_tables()")}
    assert tables == {
        "migration", "price_book", "price_day", "report_export", "budget", "closed_posting", "closed_total",
        "closed_writer", "closed_cover",
    }  # fmt: skip
    assert read(root, "SELECT count(*) FROM duckdb_tables() WHERE comment IS NULL") == [(1,)]
    assert read(root, "SELECT number, name, sha256 FROM migration") == [
        (step.number, step.name, step.sha256) for step in books.migrations()
    ]
    with books.connect(root) as connection:
        assert connection.execute("SELECT name FROM price_book").fetchall() == [("n",)]
        with pytest.raises(duckdb.Error, match="read-only"):
            connection.execute("DELETE FROM price_book")


def test_only_missing_migrations_are_applied(root: Path) -> None:
    with books.change(root, [FIRST]) as connection:
        connection.execute("INSERT INTO a VALUES (1)")
    applied = read(root, "SELECT number, applied_at FROM migration")
    with books.change(root, [FIRST, SECOND]) as connection:
        connection.execute("INSERT INTO b VALUES (2)")
    assert read(root, "SELECT x, y FROM a") == [(1, 7)]
    assert read(root, "SELECT z FROM b") == [(2,)]
    assert read(root, "SELECT number, applied_at FROM migration WHERE number = 1") == applied
    assert read(root, "SELECT max(number), count(*) FROM migration") == [(2, 2)]


def test_reading_brings_older_books_up_to_date(root: Path) -> None:
    with books.change(root, []):
        pass
    assert read(root, "SELECT count(*) FROM migration") == [(0,)]
    with books.connect(root) as connection:
        assert connection.execute("SELECT count(*) FROM price_day").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM migration").fetchone() == (len(books.migrations()),)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([Migration(1, "first", FIRST.text + " "), SECOND], "migration 0001_first, .* was changed since"),
        ([FIRST], "newer version of ROSE: it has migration 0002_second"),
        ([FIRST, Migration(3, "third", "")], "migration 0002_second, .* is not 0003_third"),
    ],
)
def test_books_of_another_history_are_refused(root: Path, steps: list[Migration], says: str) -> None:
    with books.change(root, [FIRST, SECOND]):
        pass
    before = (root / books.BOOKS).read_bytes()
    with pytest.raises(LedgerError, match=says) as raised, books.change(root, steps):
        pass
    assert str(root / books.BOOKS) in str(raised.value)
    assert (root / books.BOOKS).read_bytes() == before
    # A reader refuses them too: this version's own migrations are others.
    with pytest.raises(LedgerError, match="migration 0001_first"), books.connect(root):
        pass


def test_a_failing_migration_rolls_back_whole(root: Path) -> None:
    with books.change(root, [FIRST]):
        pass
    before = (root / books.BOOKS).read_bytes()
    broken = Migration(3, "broken", "CREATE TABLE c(x INTEGER); INSERT INTO nowhere VALUES (1);")
    with pytest.raises(LedgerError, match="migration 0003_broken fails on"):
        with books.change(root, [FIRST, SECOND, broken]):
            raise AssertionError("nothing may be changed after a failed migration")
    assert (root / books.BOOKS).read_bytes() == before
    assert names(root) == {books.BOOKS}


def test_a_change_that_fails_changes_nothing(root: Path) -> None:
    with books.change(root, [FIRST]):
        pass
    before = (root / books.BOOKS).read_bytes()

    def insert(*statements: str) -> None:
        with books.change(root, [FIRST]) as connection:
            for statement in statements:
                connection.execute(statement)
            raise ZeroDivisionError

    with pytest.raises(LedgerError, match=r"as it was: .*no_such_table"):
        insert("INSERT INTO a VALUES (1)", "INSERT INTO no_such_table VALUES (1)")
    with pytest.raises(ZeroDivisionError):
        insert("INSERT INTO a VALUES (1)")
    assert (root / books.BOOKS).read_bytes() == before
    assert names(root) == {books.BOOKS}


def test_a_reader_never_meets_a_change(root: Path) -> None:
    with books.change(root):
        pass
    with books.connect(root) as early:
        with books.change(root) as connection:
            connection.execute("INSERT INTO price_book VALUES ('s', 'n', '1', 'USD', 'text', now()::TIMESTAMP)")
            with books.connect(root) as late:
                assert late.execute("SELECT count(*) FROM price_book").fetchone() == (0,)
        assert early.execute("SELECT count(*) FROM price_book").fetchone() == (0,)
    with books.connect(root) as connection:
        assert connection.execute("SELECT count(*) FROM price_book").fetchone() == (1,)


def test_a_client_that_writes_is_noticed(root: Path) -> None:
    with books.change(root):
        pass
    other = duckdb.connect(root / books.BOOKS)
    other.execute("CREATE TABLE mine(x INTEGER)")
    with pytest.raises(LedgerError, match=r"books\.duckdb\.wal: a client has opened"), books.change(root):
        pass
    other.close()
    with books.change(root):
        pass


_CHANGING = """
import sys, time
from rose.ledger.upkeep import books
with books.change(sys.argv[1]) as connection:
    connection.execute("DELETE FROM price_book")
    rows = "SELECT i::VARCHAR, 'x', '1', 'USD', '', now()::TIMESTAMP FROM range(9999) t(i)"
    connection.execute(f"INSERT INTO price_book {rows}")
    print("changing", flush=True)
    time.sleep(60)
"""


def test_a_process_killed_in_a_change_leaves_the_books_as_they_were(root: Path) -> None:
    with books.change(root) as connection:
        connection.execute("INSERT INTO price_book VALUES ('s', 'n', '1', 'USD', 'text', now()::TIMESTAMP)")
    before = (root / books.BOOKS).read_bytes()
    with subprocess.Popen([sys.executable, "-c", _CHANGING, root], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "changing\n"
        process.kill()
    assert (root / books.BOOKS).read_bytes() == before
    assert names(root) > {books.BOOKS}, "it was killed before anything was written"
    with books.change(root) as connection:
        assert connection.execute("SELECT name FROM price_book").fetchall() == [("n",)]
    assert names(root) == {books.BOOKS}
