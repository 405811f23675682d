import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger import access
from rose.ledger.ledger import Ledger
from rose.ledger.reading.query import query


@pytest.fixture(autouse=True)
def log_exports(monkeypatch):
    monkeypatch.setenv(access.VARIABLE, "exports")


def rose(root, *arguments):
    done = CliRunner().invoke(cli.app, [*arguments, "--ledger", str(root)])
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done


def logged(root):
    return query(Ledger(root), "SELECT action, outcome, result_rows, statement FROM access ORDER BY seq").rows


def test_the_variable_says_what_is_logged(root, tmp_path, monkeypatch):
    for rule in ("", "exports"):
        monkeypatch.setenv(access.VARIABLE, rule)
        rose(root, "sql", "SELECT 1 UNION ALL SELECT 2")
        rose(root, "ledger", "receipt", "--out", str(tmp_path / f"{rule}.json"))
    assert logged(root) == [("receipt", "ok", None, str(tmp_path / "exports.json"))]
    assert "@" in query(Ledger(root), "SELECT DISTINCT who FROM access").rows[0][0]
    assert Ledger(root).verify().ok


def test_who_was_known_by_a_login_is_named_and_those_at_the_same_time_are_all_logged(root):
    def one(number):
        with access.logged(Ledger(root), "export", f"SELECT {number}", who="ann@example.com"):
            pass

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(3)))
    assert sorted(query(Ledger(root), "SELECT who, statement FROM access").rows) == [
        ("ann@example.com", f"SELECT {number}") for number in range(3)
    ]


def test_who_may_not_write_reads_on_and_is_told_beside_the_json(root):
    (root / "live" / access.WRITER).write_bytes(b"")
    done = rose(root, "ledger", "receipt", "--json", "--out", str(root.parent / "kept.json"))
    assert json.loads(done.stdout)["writers"] == 1
    assert done.stderr.startswith("this read is not in the ledger's access log: ")
