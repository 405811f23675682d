"""The processes themselves: what they cost nobody else, and what becomes of them."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import duckdb
import psutil
import pytest

from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.ledger.reading import query_worker
from rose.ledger.reading.query import QueryError, Request, query
from tests.ledger.conftest import record

#: Heeds neither DuckDB's interrupt nor its memory limit.
DEAF = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return record(tmp_path_factory.mktemp("worker") / "ledger")


def workers():
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and "rose.ledger.reading.query_worker" in process.cmdline():
                found.append(process)
    return found


def test_a_query_that_heeds_nothing_is_killed_and_leaves_no_process(root):
    query(Ledger(root), "SELECT 1")
    before = workers()
    with pytest.raises(QueryError, match=r"took longer than 0.2 s"):
        query(Ledger(root), DEAF, timeout_s=0.2)
    assert workers() == before


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGKILL, r"was killed \(SIGKILL\), by someone or because this host ran out of memory"),
        (signal.SIGSEGV, r"DuckDB crashed on the query \(SIGSEGV\)"),
        (signal.SIGABRT, "Out of Memory: the query needed more than 2 GB"),
    ],
)
def test_what_ended_a_query_is_said(root, number, says):
    query(Ledger(root), "SELECT 1")
    before = workers()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(query, Ledger(root), DEAF, timeout_s=60)
        while not (new := [process for process in workers() if process not in before]):
            assert not asked.done()
            time.sleep(0.01)
        assert query(Ledger(root), "SELECT 1").rows == [(1,)], "another answer does not wait for this one"
        new[0].send_signal(number)
        with pytest.raises(QueryError, match=says):
            asked.result()
    assert workers() == before


def test_a_query_that_takes_more_memory_than_it_may_is_ended(root):
    with pytest.raises(QueryError, match="Out of Memory"):
        query(Ledger(root), "SELECT length(repeat('x', 4000000000))", memory_limit_gb=0.1)


def test_duckdb_s_own_lock_down_stands_behind_the_check(root):
    (root / "logs").mkdir(exist_ok=True)
    (root / "logs" / "engine.log").write_text("prompt")
    (root.parent / "secret.csv").write_text("password\nhunter2\n")
    before = sorted(root.parent.rglob("*"))
    request = Request(str(root), "", 1, 9, 1)
    with catalog.connect(root) as connection:
        query_worker._lock_down(connection, root, request)
        for text in (
            f"FROM read_text('{root}/logs/engine.log')",
            f"FROM read_text('{root}/live/../logs/engine.log')",
            f"FROM '{root}/../secret.csv'",
            f"FROM glob('{root}/../*')",
            f"COPY (SELECT 1) TO '{root}/../out.csv'",
            f"ATTACH '{root}/../out.duckdb'",
            "SET max_execution_time = 0",
            "SET memory_limit = '100GB'",
            "SET allowed_directories = ['/']",
        ):
            with pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException)):
                connection.execute(text).fetchall()
        assert connection.execute("SELECT count(*) FROM event").fetchall() == [(0,)]
    assert sorted(root.parent.rglob("*")) == before


def test_the_process_that_forks_is_replaced_when_it_is_killed(root):
    assert query(Ledger(root), "SELECT 1").rows == [(1,)]
    (parent,) = workers()
    parent.kill()
    psutil.wait_procs([parent], timeout=10)
    assert query(Ledger(root), "SELECT 2").rows == [(2,)]


def test_it_ends_with_the_process_that_started_it_even_if_that_is_killed_and_holds_no_token(root, gone, monkeypatch):
    monkeypatch.setenv("ROSE_TOKEN", "secret")
    code = (
        "import os, sys, threading; from rose.ledger.reading.query import query\n"
        "from rose.ledger.ledger import Ledger; ledger = Ledger(sys.argv[1])\n"
        "query(ledger, 'SELECT 1')\n"
        "import psutil; worker = psutil.Process().children()[0]\n"
        "print(worker.pid, 'ROSE_TOKEN' in worker.environ(), flush=True)\n"
        "query(ledger, sys.argv[2], timeout_s=60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(root), DEAF], stdout=subprocess.PIPE, text=True) as program:
        group, holds = program.stdout.readline().split()
        assert holds == "False"
        while len(psutil.Process(int(group)).children()) == 0:
            time.sleep(0.01)
        os.kill(program.pid, signal.SIGKILL)
    # It has a session, and so a group, of its own; the query at work ends with whoever asked.
    assert gone(int(group), 10) == []
