import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.ledger.hostile import MADE, statements
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.ledger.reading import query_check
from rose.ledger.reading.query import QueryError, query, query_arrow
from tests.ledger.conftest import record
from tests.long_form import usual

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def root(tmp_path_factory, lease):
    leases = (lease(lease_id=f"l{n}", at_us=n, step=n) for n in range(5))
    root = record(tmp_path_factory.mktemp("query") / "ledger", *leases)
    (root.parent / "secret.csv").write_text("password\nhunter2\n")
    return root


def test_columns_and_types_are_named_also_without_rows(root):
    result = query(Ledger(root), "SELECT lease_id, event_time FROM lease WHERE false")
    assert (result.columns, result.rows) == (["lease_id", "event_time"], [])


def test_the_limit_is_kept_and_said(root):
    for limit, truncated in ((0, True), (4, True), (5, False)):
        result = query(Ledger(root), "FROM lease", limit=limit)
        assert (len(result.rows), result.truncated) == (min(limit, 5), truncated)


HARMLESS = [
    ("SELECT lease_id, step FROM lease ORDER BY step DESC LIMIT 2", [("l4", 4), ("l3", 3)]),
    ("FROM lease SELECT count(*)", [(5,)]),
    ("WITH l AS (SELECT * FROM lease) SELECT max(step) FROM l;", [(4,)]),
    ("SELECT 1 -- with a comment at its end", [(1,)]),
    ("VALUES (1), (2)", [(1,), (2,)]),
    ("SELECT lease_id, row_number() OVER (ORDER BY step DESC) AS n FROM lease QUALIFY n = 1", [("l4", 1)]),
    ("SELECT count(*) FROM (SUMMARIZE lease) WHERE column_name = 'step'", [(1,)]),
    ("SELECT count(*) > 10 FROM (DESCRIBE FROM lease)", [(True,)]),
    ("PIVOT (SELECT step FROM lease) ON step IN (1, 2) USING count(*)", [(1, 1)]),
    ("UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b INTO NAME n VALUE v", [("a", 1), ("b", 2)]),
    (
        "SELECT l.lease_id, r.lease_id FROM lease l ASOF JOIN (FROM lease WHERE step % 2 = 0) r ON l.step >= r.step"
        " ORDER BY l.step LIMIT 2",
        [("l0", "l0"), ("l1", "l0")],
    ),
    ("SELECT unnest([1, 2])", [(1,), (2,)]),
    ("FROM unnest([1, 2])", [(1,), (2,)]),
    ("SELECT range FROM range(3)", [(0,), (1,), (2,)]),
    ("FROM generate_series(1, 2)", [(1,), (2,)]),
    ("SELECT event_time FROM lease WHERE event_time IS NULL", []),
    ("SELECT list_transform([1, 2], lambda x: x + 1)", [([2, 3],)]),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT sum(n) FROM t", [(6,)]),
    ("WITH a AS (SELECT 1 AS x), b AS (FROM a), c AS (WITH a AS (SELECT 2 AS x) FROM a) FROM b, c", [(1, 2)]),
    ("SELECT (SELECT count(*) FROM lease i WHERE i.step < o.step) FROM lease o ORDER BY 1 DESC LIMIT 1", [(4,)]),
    ("SELECT count(*) FROM ledger.main.lease JOIN main.event USING (lease_id)", [(5,)]),
    ("SELECT max(key) FROM json_each('{\"a\": 1}')", [("a",)]),
]
TRAVELLED = [
    ("SELECT lease_id, step FROM lease ORDER BY step DESC LIMIT 2", [("l4", 4), ("l3", 3)]),
    ("SELECT now() < TIMESTAMPTZ '2020-01-01', TIMESTAMPTZ '2020-01-01 01:00+01'", [(False, datetime(2020, 1, 1))]),
    (
        "SELECT 1::HUGEINT, sum(step), 1.50::DECIMAL(5, 2), '101'::BIT, [1::HUGEINT], {'a': 1}, NULL FROM lease",
        [(1, 10, Decimal("1.50"), "101", [1], {"a": 1}, None)],
    ),
]


def test_what_is_harmless_works(root):
    with catalog.connect(root) as connection:
        for text, rows in HARMLESS:
            assert connection.execute(query_check.limited(connection, text, 100)).fetchall() == rows, text
    for text, rows in TRAVELLED:
        assert query(Ledger(root), text).rows == rows


def test_an_arrow_table_says_the_types_of_its_columns(root):
    select = "SELECT lease_id, sum(step) AS steps FROM lease GROUP BY ALL"
    table, truncated = query_arrow(Ledger(root), select, limit=3, timeout_s=30, memory_limit_gb=2, lossless=False)
    assert (table.num_rows, truncated) == (3, True)
    assert [field.metadata for field in table.schema] == [{b"type": b"VARCHAR"}, {b"type": b"HUGEINT"}]
    assert table.schema.field("steps").type == pa.decimal128(38, 0)


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_hostile_statement_is_refused_or_stopped(root):
    """In a process of its own, but for the many that the check refuses: it is asked about those in this one."""
    before = files(root.parent)
    texts = {
        comment: text.replace("{root}", str(root)).replace("{outside}", str(root.parent))
        for comment, text in statements().items()
    }
    assert len(texts) == len(set(texts.values())) >= 290
    with catalog.connect(root) as connection:
        refused = {comment for comment in texts.keys() - MADE.keys() if not passes(connection, texts[comment])}
    assert len(refused) >= 200

    def attempt(comment):
        began = time.monotonic()
        try:
            outcome = query(Ledger(root), texts[comment], limit=1000, timeout_s=0.2, memory_limit_gb=0.3)
        except QueryError as error:
            outcome = error
        return comment, outcome, time.monotonic() - began

    # Some of those that the check refuses, too: that it stands before the query.
    tried = sorted(texts.keys() - refused)[:: usual(60, long=1)] + sorted(refused)[:: usual(120, long=20)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(attempt, tried))
    assert files(root.parent) == before
    assert [comment for comment, outcome, _ in outcomes if not isinstance(outcome, QueryError)] == []
    assert [comment for comment, outcome, _ in outcomes if "hunter2" in str(outcome)] == []
    # Without an end of its own it would run for minutes; this much is for a busy machine.
    assert [comment for comment, _, seconds in outcomes if seconds >= 20] == []


def passes(connection, text):
    try:
        query_check.limited(connection, text, 1000)
    except QueryError as error:
        return "hunter2" in str(error)
    return True


def test_a_result_that_is_too_large_is_refused(root):
    with pytest.raises(QueryError, match="the result exceeds 256 MiB"):
        query(Ledger(root), "SELECT repeat('x', 1000000) FROM range(400)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("DROP VIEW lease", "a DROP statement was given. Allowed is exactly one SELECT"),
        ("SELECT 1; SELECT 2", "2 statements were given. Allowed is exactly one SELECT"),
        ("SELECT * FROM read_text('/etc/hostname')", "Allowed is exactly one SELECT"),
        ("SELECT count(*) FROM leese", "'leese' is not a view of the ledger; did you mean 'lease'?"),
        ("WITH newest AS (FROM run) FROM newst", "did you mean 'newest'?"),
        ("SELECT leese_id FROM lease", 'Candidate bindings: "lease_id"'),
    ],
)
def test_an_error_says_what_is_allowed(root, text, says):
    with pytest.raises(QueryError) as caught:
        query(Ledger(root), text)
    assert says in str(caught.value)


def test_a_query_that_takes_too_long_is_interrupted(root):
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
    with pytest.raises(QueryError, match=r"took longer than 0.2 s"):
        query(Ledger(root), endless, timeout_s=0.2)
