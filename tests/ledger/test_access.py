"""What commands on a folder leave in its access log, where ROSE_LOG_ACCESS asks for one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger import access
from rose.ledger.reading.query import query
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter


@pytest.fixture
def root(tmp_path, lease):
    with LedgerWriter.open(tmp_path / "ledger", "w", "r") as writer:
        writer.record(lease())
    return tmp_path / "ledger"


@pytest.fixture
def rule(monkeypatch):
    return lambda wanted: monkeypatch.setenv(access.VARIABLE, wanted)


def rose(root, *arguments):
    done = CliRunner().invoke(cli.app, [*arguments, "--ledger", str(root)])
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done


def commands(root, tmp_path):
    rose(root, "sql", "SELECT 1 UNION ALL SELECT 2")
    rose(root, "sql", "DROP VIEW lease")
    rose(root, "query", "activation_overhead")
    rose(root, "ledger", "verify")
    rose(root, "ledger", "receipt", "--out", str(tmp_path / f"receipt-{len(list(tmp_path.iterdir()))}.json"))
    rose(root, "report")


def logged(root):
    return query(root, "SELECT action, outcome, result_rows, statement FROM access ORDER BY seq").rows


@pytest.mark.long
def test_nothing_is_logged_unless_it_is_asked_for(root, tmp_path):
    commands(root, tmp_path)
    assert not (root / "live" / access.WRITER).exists()


@pytest.mark.long
@pytest.mark.parametrize(("wanted", "queries"), [("exports", False), ("queries", True)])
def test_the_variable_says_what_is_logged(root, tmp_path, rule, wanted, queries):
    rule(wanted)
    commands(root, tmp_path)
    found = logged(root)
    assert [row for row in found if row[0] != "query"] == [
        ("verify", "ok", None, "every byte"),
        ("receipt", "ok", None, str(tmp_path / "receipt-1.json")),
        ("report", "failed", None, "run newest, prices as decided"),
    ]
    asked = [row for row in found if row[0] == "query"]
    assert len(asked) == 3 * queries
    if queries:
        assert asked[:2] == [
            ("query", "ok", 2, "SELECT 1 UNION ALL SELECT 2"),
            ("query", "refused", None, "DROP VIEW lease"),
        ]
    (who,) = {who for (who,) in query(root, "SELECT who FROM access").rows}
    assert "@" in who
    assert verify(root).ok


def test_who_was_known_by_a_login_is_named(root, rule):
    rule("queries")
    with access.logged(root, "query", "SELECT 1", who="ann@example.com"):
        pass
    assert query(root, "SELECT who, statement FROM access").rows == [("ann@example.com", "SELECT 1")]


@pytest.mark.long
def test_commands_at_the_same_time_are_all_logged(root, rule):
    rule("queries")

    def one(number):
        with access.logged(root, "query", f"SELECT {number}"):
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(12)))
    assert {row[3] for row in logged(root)} == {f"SELECT {number}" for number in range(12)}


def test_who_may_not_write_reads_on_and_is_told(root, rule, capsys):
    rule("queries")
    (root / "live" / access.WRITER).write_bytes(b"")
    with access.logged(root, "query", "SELECT 1") as reading:
        reading.rows = 1
    assert capsys.readouterr().err.startswith("this is not in the ledger's access log: ")


def test_json_on_stdout_stays_json_when_the_log_cannot_be_written(root, rule):
    rule("queries")
    (root / "live" / access.WRITER).write_bytes(b"")
    done = rose(root, "sql", "SELECT 1 AS one", "--json")
    assert json.loads(done.stdout) == [{"one": 1}]
    assert "access log" in done.stderr
