"""Every named query runs by hand and by `rose query`, keeps provenances apart, and says what it reads."""

import json
import re

import duckdb
import pytest
from typer.testing import CliRunner

from rose.cli import app
from rose.ledger.commands.common import cell_text
from rose.ledger.reading import named
from tests.long_form import usual

#: What the recorded sample has no case of.
NONE_IN_SAMPLE = {
    "delay_by_request",
    "dropped_events",
    "energy_by_device_and_day",
    "open_leases",
    "sync_failures",
    "unaccounted_device_time",
    "wasted_tokens_by_cause",
}
#: These count what a ledger wrote about itself too: the merging of the copied sample, under a run of its own.
OWN_EVENTS = {"late_writers", "ledger_growth"}
VOLATILE = {"age_ns"}
names = pytest.mark.parametrize("name", named.names())


def rose(root, name, *options):
    done = CliRunner().invoke(app, ["query", name, "--ledger", str(root), "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def steady(rows):
    kept = [{column: cell for column, cell in row.items() if column not in VOLATILE} for row in rows]
    return [json.loads(json.dumps(row, default=cell_text)) for row in kept]


@names
def test_a_query_is_narrowed_and_keeps_provenances_apart(name, small, mixed, by_hand):
    alone = steady(by_hand(small, name))
    rows = steady(by_hand(mixed, name, run_id="'r'", since="DATE '2026-11-02'", until="TIMESTAMP '2026-11-03'"))
    assert {row["provenance"] for row in rows} == ({"live", "simulated"} if alone else set())
    assert {row.get("run_id", "r") for row in rows} <= {"r"}
    if name not in OWN_EVENTS:
        assert [row for row in rows if row["provenance"] == "live"] == alone
        assert len(rows) == 2 * len(alone)
    assert by_hand(small, name, since="TIMESTAMP '2100-01-01'", until="DATE '2100-01-02'") == []
    assert by_hand(small, name, run_id="'another'") == []


@pytest.mark.parametrize("name", named.names()[::20])
def test_a_query_runs_through_rose_as_by_hand(name, small, by_hand):
    window = ("--since", "2026-11-02", "--until", "2026-11-03T00:00:00Z", "--run", "r", "--limit", "500")
    assert steady(rose(small, name, *window)) == steady(by_hand(small, name))
    assert rose(small, name, "--until", "2020-01-01") == []


@pytest.mark.parametrize("name", named.names()[:: usual(5, long=1)])
def test_a_query_runs_on_what_was_recorded(name, sample, by_hand):
    rows = by_hand(sample, name)
    assert (rows == []) == (name in NONE_IN_SAMPLE)
    assert all(row["provenance"] == "live" for row in rows)


@names
def test_a_query_says_what_it_answers_and_what_it_reads(name):
    query = named.load(name)
    assert re.fullmatch(r"For [^:]+: [^?]+\?", query.question), "one sentence: for whom, and which question"
    assert query.reading
    variables = [variable.name for variable in query.variables]
    assert set(variables) == set(re.findall(r"getvariable\('(\w+)'\)", query.text))
    assert variables[:3] == ["since", "until", "run_id"], "every query can be narrowed in the same way"
    assert all(variable.about for variable in query.variables)
    mentioned = set(re.findall(r"`(\w+_\w+)`", query.reading))
    assert mentioned - set(named.names()) <= set(re.findall(r"\w+", query.text.split("\n\n")[-1])), "a name is wrong"


def test_each_query_asks_something_else():
    questions = [named.load(name).question for name in named.names()]
    assert len(set(questions)) == len(questions) >= 24


@pytest.mark.parametrize("name", ["turns_by_placement", "device_time_by_bucket_and_day"])
def test_a_filter_reaches_the_files_statistics(name, small):
    """A variable that is set must become a constant that Parquet's statistics are checked against."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{small}/ledger.duckdb' AS ledger (READ_ONLY)")
        connection.execute("USE ledger")
        text = f"EXPLAIN {named.load(name).text}"

        def plan():
            return connection.execute(text).fetchall()[0][1].replace(" ", "")

        assert "run_id='q'" not in plan()
        assert "READ_PARQUET" in plan()
        connection.execute("SET VARIABLE run_id = 'q'")
        assert "run_id='q'" in plan() or "READ_PARQUET" not in plan()
        if name.startswith("device_time"):
            connection.execute("SET VARIABLE run_id = 'r'; SET VARIABLE since = DATE '2100-01-01'")
            assert "t0_ns>=4102444800000000000" in plan() or "READ_PARQUET" not in plan()
