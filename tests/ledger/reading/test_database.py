"""Databases in memory that are used again: nobody sees what another left, and no two use one at once."""

import os
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

from rose.ledger.files import database
from tests.ledger.conftest import ask


@pytest.fixture(autouse=True)
def none_idle(monkeypatch):
    monkeypatch.setattr(database, "_idle", [])


def test_one_that_was_used_is_used_again_and_nothing_of_its_use_is_left(tmp_path):
    first = database.empty()
    first.execute(f"ATTACH '{tmp_path / 'file.duckdb'}' AS ledger")
    first.execute("CREATE TEMP TABLE t AS SELECT 1")
    first.execute("CREATE TEMP MACRO one() AS 1")
    first.execute("SET VARIABLE x = 1; SET TimeZone = 'Asia/Tokyo'; USE ledger")
    with database.one_thread(first):
        assert first.execute("SELECT current_setting('threads')").fetchall() == [(1,)]
    first.close()
    assert database._idle == [], "the object can still be asked"
    del first
    (kept,) = database._idle
    second = database.empty()
    assert database._idle == []
    shown = "SELECT getvariable('x'), current_setting('TimeZone') <> 'Asia/Tokyo', current_schema()"
    assert second.execute(shown).fetchall() == [(None, True, "main")]
    assert second.execute("SELECT count(*) FROM duckdb_databases() WHERE database_name = 'ledger'").fetchall() == [(0,)]
    for gone in ("FROM t", "SELECT one()"):
        with pytest.raises(duckdb.CatalogException):
            second.execute(gone)
    threads = "SELECT current_setting('threads')"
    assert second.execute(threads).fetchall() == kept.execute(threads).fetchall()
    with duckdb.connect(tmp_path / "file.duckdb"):
        pass  # Nothing holds it open.


def test_no_two_have_the_same_at_once():
    two = [database.empty(), database.empty()]
    two[0].execute("SET memory_limit = '100MB'")
    assert two[1].execute("SELECT current_setting('memory_limit')").fetchall() != [("95.3 MiB",)]


def test_one_that_is_locked_or_keeps_much_is_not_used_again(monkeypatch):
    database.empty().execute("SET lock_configuration = true")
    assert database._idle == []
    monkeypatch.setattr(database, "_IDLE_BYTES", -1)
    database.empty()
    assert database._idle == []


def test_no_more_wait_than_a_few():
    several = [database.empty() for _ in range(2 * database._IDLE_AT_MOST)]
    several.clear()
    assert len(database._idle) == database._IDLE_AT_MOST


def test_threads_that_read_a_ledger_at_once_have_its_rows(root):
    def read(_):
        return [ask(root, "SELECT count(*) FROM lease") for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [[[(1,)]] * 5] * 4


def test_a_forked_process_has_databases_of_its_own():
    database.empty()
    used = database.empty()
    assert used.execute("SELECT 1").fetchall() == [(1,)]
    if (child := os.fork()) == 0:
        try:
            del used  # It is the parent's to close.
            with database.empty() as connection:
                right = connection.execute("SELECT sum(range) FROM range(100000)").fetchall() == [(4999950000,)]
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert used.execute("SELECT 1").fetchall() == [(1,)]
