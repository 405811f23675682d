import json
import re

import duckdb
import pytest

from rose.ledger.reading.query import QueryError
from rose.ledger.reading.query_check import FUNCTIONS_REFUSED, TABLE_FUNCTIONS, check, limited

VOLATILE_ALLOWED = re.findall(
    r"\w+",
    "current_database current_date current_localtime current_localtimestamp current_schema current_schemas error "
    "gen_random_uuid get_current_time get_current_timestamp getvariable in_search_path now random today "
    "transaction_timestamp uuid uuidv4 uuidv7",
)


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as connection:
        connection.execute("ATTACH ':memory:' AS ledger; USE ledger")
        connection.execute("CREATE SCHEMA internal")
        connection.execute("CREATE VIEW internal.job AS SELECT 1 AS a")
        connection.execute("CREATE VIEW job AS FROM internal.job")
        yield connection


def refuses(connection, text):
    with pytest.raises(QueryError) as caught:
        limited(connection, text, 10)
    return str(caught.value)


def test_every_function_of_this_duckdb_that_looks_beyond_its_arguments_is_known(connection):
    """A new version of DuckDB brings new functions: each that is not a pure one is to be looked at. Functions that are
    pure for other types depend on the session's time zone alone."""
    impure = "bool_or(stability = 'VOLATILE') OR bool_and(stability <> 'CONSISTENT')"
    listed = f"SELECT function_name FROM duckdb_functions() GROUP BY function_name HAVING {impure}"
    names = {name for (name,) in connection.execute(listed).fetchall()}
    assert names - FUNCTIONS_REFUSED - {*VOLATILE_ALLOWED} == set()
    assert FUNCTIONS_REFUSED.isdisjoint(VOLATILE_ALLOWED)


def test_the_table_functions_that_are_allowed_exist_and_every_other_is_refused(connection):
    listed = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('table', 'table_macro')"
    every = {name for (name,) in connection.execute(listed).fetchall()}
    assert every >= TABLE_FUNCTIONS
    names = every - TABLE_FUNCTIONS
    assert len(names) > 80
    for name in sorted(names):
        serialized = f"SELECT json_serialize_sql('SELECT * FROM {name}(1)')"
        with pytest.raises(QueryError, match=f"the table function '{name}' is not allowed"):
            check(json.loads(connection.execute(serialized).fetchall()[0][0]))


def test_views_of_the_catalog_are_allowed(connection):
    for text in ("FROM job", "FROM MAIN.Job", "FROM ledger.main.job", "FROM internal.job"):
        assert connection.execute(limited(connection, text, 10)).fetchall()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FROM other.main.job", "other.main.job"),
        ("FROM temp.job", "temp.job"),
        ("FROM system.main.duckdb_views", "system.main.duckdb_views"),
        ("FROM ledger.main.range(1)", "range"),
        ("FROM strange", "'strange'"),
        ("FROM duckdb_views()", "duckdb_views"),
        ("SHOW TABLES", "SHOW"),
        ("SHOW ALL TABLES", "SHOW"),
        ("DESCRIBE FROM 'x.csv'", "x.csv"),
        ("SUMMARIZE 'x.csv'", "x.csv"),
        ("FROM job WHERE a IN (FROM 'x.csv')", "x.csv"),
        ("FROM job ORDER BY (SELECT count(*) FROM 'x.csv')", "x.csv"),
        ("FROM job LIMIT (SELECT count(*) FROM 'x.csv')", "x.csv"),
        ("SELECT list_transform([1], lambda x: (SELECT count(*) FROM 'x.csv')) FROM job", "x.csv"),
        ("FROM job, LATERAL (FROM read_text(a))", "read_text"),
        ("FROM range((SELECT count(*) FROM 'x.csv'))", "x.csv"),
        ("PIVOT (FROM 'x.csv') ON a IN (1) USING count(*)", "x.csv"),
        ("WITH t AS (FROM t) FROM t", "'t'"),
        ("SELECT sum(a) FILTER (current_setting('threads') = 1) FROM job", "current_setting"),
        ("SELECT first_value(current_query()) OVER () FROM job", "current_query"),
        ("SELECT system.main.current_setting('threads')", "current_setting"),
        ("SELECT 'threads'.current_setting()", "current_setting"),
        ("SELECT pg_catalog.pg_sleep(1)", "pg_sleep"),
        # It binds SQL of its own, and so tells where the ledger lies.
        ("SELECT json_serialize_plan('SELECT current_setting(''a'')', optimize := true)", "'json_serialize_plan'"),
    ],
)
def test_what_is_refused_is_named_wherever_it_stands(connection, text, named):
    assert named in refuses(connection, text)


def test_a_statement_of_a_kind_that_duckdb_s_python_package_has_no_name_for_is_refused(connection):
    (statement,) = connection.extract_statements("UPDATE EXTENSIONS")
    with pytest.raises(ValueError, match="is not a valid StatementType"):
        _ = statement.type
    assert "a non-SELECT statement was given. Allowed is" in refuses(connection, "UPDATE EXTENSIONS")
