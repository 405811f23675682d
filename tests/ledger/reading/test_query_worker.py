"""The processes themselves: what they cost nobody else, and what becomes of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import duckdb
import psutil
import pytest

from rose.ledger import catalog
from rose.ledger.reading import query_worker
from rose.ledger.reading.query import QueryError, Request, query
from rose.ledger.writer import LedgerWriter

#: Heeds neither DuckDB's interrupt nor its memory limit.
DEAF = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("worker") / "ledger"
    LedgerWriter.open(root, "w", "r").close()
    return root


def workers():
    """The process that forks, and those that it forked."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and "rose.ledger.reading.query_worker" in process.cmdline():
                found.append(process)
    return found


def test_a_query_that_heeds_nothing_is_killed_and_leaves_no_process(root):
    query(root, "SELECT 1")
    before = workers()
    with pytest.raises(QueryError, match=r"took longer than 0.2 s"):
        query(root, DEAF, timeout_s=0.2)
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
    query(root, "SELECT 1")
    before = workers()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(query, root, DEAF, timeout_s=60)
        while not (new := [process for process in workers() if process not in before]):
            assert not asked.done()
            time.sleep(0.01)
        assert query(root, "SELECT 1").rows == [(1,)], "another answer does not wait for this one"
        new[0].send_signal(number)
        with pytest.raises(QueryError, match=says):
            asked.result()
    assert workers() == before


def test_a_query_that_takes_more_memory_than_it_may_is_ended(root):
    with pytest.raises(QueryError, match="Out of Memory"):
        query(root, "SELECT length(repeat('x', 4000000000))", memory_limit_gb=0.1)


def test_a_result_for_which_arrow_gets_no_memory_is_refused(root):
    """DuckDB needs next to none: what is too large is the copy in which the rows are handed over."""
    with pytest.raises(QueryError, match=r"Out of Memory: the query needed more than 0.05 GB; narrow it"):
        query(root, "SELECT repeat('x', 10000) FROM range(25000)", limit=25000, memory_limit_gb=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "FROM read_text('{root}/logs/engine.log')",
        "FROM read_text('{root}/live/../logs/engine.log')",
        "FROM read_text('{root}/../secret.csv')",
        "FROM '{root}/../secret.csv'",
        "FROM glob('{root}/../*')",
        "COPY (SELECT 1) TO '{root}/../out.csv'",
        "ATTACH '{root}/../out.duckdb'",
        "SET max_execution_time = 0",
        "SET memory_limit = '100GB'",
        "SET allowed_directories = ['/']",
    ],
)
def test_duckdb_s_own_lock_down_stands_behind_the_check(root, text):
    (root / "logs").mkdir(exist_ok=True)
    (root / "logs" / "engine.log").write_text("prompt")
    (root.parent / "secret.csv").write_text("password\nhunter2\n")
    before = sorted(root.parent.rglob("*"))
    request = Request(root=str(root), text="", limit=1, timeout_s=9, memory_limit_gb=1)
    with catalog.connect(root) as connection:
        query_worker._lock_down(connection, root, request)
        with pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException)):
            connection.execute(text.format(root=root)).fetchall()
        assert connection.execute("SELECT count(*) FROM event").fetchall() == [(0,)]
    assert sorted(root.parent.rglob("*")) == before


def test_the_process_that_forks_is_replaced_when_it_is_killed(root):
    assert query(root, "SELECT 1").rows == [(1,)]
    (parent,) = workers()
    parent.kill()
    psutil.wait_procs([parent], timeout=10)
    assert query(root, "SELECT 2").rows == [(2,)]


@pytest.mark.long
def test_many_threads_share_it(root):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        assert [r.rows for r in pool.map(lambda n: query(root, f"SELECT {n}"), range(12))] == [
            [(n,)] for n in range(12)
        ]


def test_it_ends_with_the_process_that_started_it_even_if_that_is_killed(root, gone):
    code = (
        "import os, sys, threading; from rose.ledger.reading.query import query\n"
        "query(sys.argv[1], 'SELECT 1')\n"
        "import psutil; print(psutil.Process().children()[0].pid, flush=True)\n"
        "query(sys.argv[1], sys.argv[2], timeout_s=0.5)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(root), DEAF], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        group = int(program.stdout.readline())
        time.sleep(0.2)
        os.kill(program.pid, signal.SIGKILL)
    # It has a session, and so a group, of its own.
    assert gone(group, 10) == []


def test_it_does_not_hold_the_gateway_s_token(root, monkeypatch):
    monkeypatch.setenv("ROSE_TOKEN", "secret")
    code = (
        "import sys, psutil; from rose.ledger.reading.query import query; query(sys.argv[1], 'SELECT 1')\n"
        "print('ROSE_TOKEN' in psutil.Process().children()[0].environ())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.long
def test_a_query_whose_asker_is_gone_ends_at_once(root):
    asks = f"from rose.ledger.reading.query import query; query({str(root)!r}, {DEAF!r}, timeout_s=60)"
    asker = subprocess.Popen([sys.executable, "-c", asks], stderr=subprocess.DEVNULL)
    mine = psutil.Process(asker.pid)
    found: list[psutil.Process] = []
    while len(found) < 2:  # the process that forks, and the one that works
        found = [process for process in mine.children(recursive=True) if process.is_running()]
        time.sleep(0.05)
    busy = found[-1]
    while busy.cpu_times().user < 0.2:
        time.sleep(0.05)
    os.kill(asker.pid, signal.SIGKILL)
    asker.wait()
    gone, left = psutil.wait_procs([busy], timeout=10)
    assert gone, left


def test_a_process_that_was_let_go_already_is_passed_over():
    """Signals arrive while one is handled: then the handler runs within itself, and the inner one is first."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    mine, other = socket.socketpair()
    with mine, other:
        query_worker._reap({pid: mine})
