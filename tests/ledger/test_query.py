from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose.ledger import catalog
from rose.ledger.layout import LedgerError
from rose.ledger.query import QueryError, query
from rose.ledger.writer import LedgerWriter


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, lease: Any) -> Path:
    root = tmp_path_factory.mktemp("query") / "ledger"
    with LedgerWriter.open(root, "w", "r") as writer:
        for n in range(5):
            writer.record(lease(lease_id=f"l{n}", at_us=n, step=n))
    (root.parent / "secret.csv").write_text("password\nhunter2\n")
    return root


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            "SELECT lease_id, step FROM lease ORDER BY step DESC",
            [("l4", 4), ("l3", 3), ("l2", 2), ("l1", 1), ("l0", 0)],
        ),
        ("FROM lease SELECT count(*)", [(5,)]),
        ("WITH l AS (SELECT * FROM lease) SELECT max(step) FROM l;", [(4,)]),
        ("SELECT 1 -- with a comment at its end", [(1,)]),
        ("VALUES (1), (2)", [(1,), (2,)]),
        ("SELECT column_name FROM (DESCRIBE lease) LIMIT 1", [("writer",)]),
    ],
)
def test_a_select_is_answered_in_its_order(root: Path, text: str, rows: list[Any]) -> None:
    assert query(root, text).rows == rows


def test_columns_and_types_are_named_also_without_rows(root: Path) -> None:
    result = query(root, "SELECT lease_id, lease.at FROM lease WHERE false")
    assert (result.columns, result.types, result.rows) == (["lease_id", "at"], ["VARCHAR", "TIMESTAMP"], [])


@pytest.mark.parametrize(("limit", "truncated"), [(0, True), (4, True), (5, False), (6, False)])
def test_the_limit_is_kept_and_said(root: Path, limit: int, truncated: bool) -> None:
    result = query(root, "FROM lease", limit=limit)
    assert (len(result.rows), result.truncated) == (min(limit, 5), truncated)


HOSTILE = [
    "",
    ";",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW lease",
    "SELECT 1) UNION ALL (SELECT 2",
    "SELECT 1) TO '{outside}/out.csv' --",
    "INSERT INTO lease VALUES (1)",
    "DELETE FROM lease",
    "UPDATE lease SET step = 1",
    "DROP VIEW lease",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE OR REPLACE TEMP VIEW stored_event AS SELECT 1",
    "WITH gone AS (DELETE FROM lease RETURNING *) SELECT * FROM gone",
    "SELECT * FROM (INSERT INTO lease VALUES (1) RETURNING *)",
    "COPY lease TO '{outside}/out.csv'",
    "COPY (SELECT 1) TO '{root}/live/w/000000/x.parquet' (FORMAT parquet)",
    "EXPORT DATABASE '{outside}/dump'",
    "ATTACH '{outside}/other.duckdb'",
    "ATTACH ':memory:' AS scratch",
    "DETACH ledger",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET lock_configuration = false",
    "SET enable_external_access = true",
    "RESET memory_limit",
    "SET VARIABLE x = 1",
    "PRAGMA enable_profiling",
    "PRAGMA profiling_output = '{outside}/profile'",
    "CALL pragma_version()",
    "EXPLAIN ANALYZE SELECT 1",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "SELECT * FROM read_csv('{outside}/secret.csv')",
    "SELECT * FROM '{outside}/secret.csv'",
    "SELECT * FROM read_text('{outside}/secret.csv')",
    "SELECT * FROM read_blob('{root}/../secret.csv')",
    "SELECT * FROM sniff_csv('{outside}/secret.csv')",
    "SELECT * FROM glob('{outside}/*')",
    "SELECT * FROM read_parquet('{outside}/*.parquet')",
    "SELECT * FROM read_csv('https://example.invalid/x.csv')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{outside}/out.csv''')",
    "SELECT getenv('HOME')",
    "SELECT * FROM mine",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_anything_else_is_refused_and_leaves_no_trace(root: Path, text: str) -> None:
    mine = [{"a": 1}]  # A Python variable is no table.
    before = sorted(root.parent.rglob("*"))
    with pytest.raises(QueryError) as caught:
        query(root, text.format(root=root, outside=root.parent))
    assert mine
    assert "hunter2" not in str(caught.value)
    assert sorted(root.parent.rglob("*")) == before
    assert query(root, "SELECT count(*) FROM lease").rows == [(5,)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("DROP VIEW lease", "a DROP statement was given. Allowed is exactly one SELECT"),
        ("SELECT 1; SELECT 2", "2 statements were given. Allowed is exactly one SELECT"),
        ("SELECT * FROM read_text('/etc/hostname')", "Allowed is exactly one SELECT"),
        ("SELECT seq, at FROM lease", 'write the column as "at"'),
        ("SELECT colour FROM lease", "colour"),
    ],
)
def test_an_error_says_what_is_allowed(root: Path, text: str, says: str) -> None:
    with pytest.raises(QueryError) as caught:
        query(root, text)
    assert says in str(caught.value)


def test_a_query_that_takes_too_long_is_interrupted(root: Path) -> None:
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
    with pytest.raises(QueryError, match=r"took longer than 0.2 s"):
        query(root, endless, timeout_s=0.2)


def test_a_query_that_takes_too_much_memory_fails(root: Path) -> None:
    with pytest.raises(QueryError, match="Out of Memory"):
        query(root, "SELECT count(*) FROM (SELECT DISTINCT range FROM range(100000000))", memory_limit_gb=0.05)


@pytest.mark.parametrize("bound", [{"limit": -1}, {"timeout_s": 0}, {"memory_limit_gb": 0}])
def test_bounds_must_be_positive(root: Path, bound: dict[str, Any]) -> None:
    with pytest.raises(QueryError, match="must be positive"):
        query(root, "SELECT 1", **bound)


def test_every_view_can_be_queried(root: Path) -> None:
    for view in catalog.VIEWS:
        assert query(root, f"FROM {view}").columns[:2] == ["writer", "seq"]


def test_a_folder_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=f"{tmp_path} is not a ledger"):
        query(tmp_path, "SELECT 1")
