import csv
import io
import json
from functools import partial

import pytest
import typer

from rose.ledger.commands.query import query_command, schema_command, sql_command
from rose.ledger.reading import named
from tests.ledger.commands.conftest import check_refused, invoke
from tests.ledger.conftest import copied, record
from tests.ledger.hosts.served import serve

app = typer.Typer()
app.command("sql")(sql_command)
app.command("query")(query_command)
app.command("schema")(schema_command)
run = partial(invoke, app)


@pytest.fixture(scope="module")
def root_made(tmp_path_factory, lease):
    times = [1_793_491_200_000_000 + n * 2_000_000 for n in range(3)]
    leases = (lease(lease_id=f"l{n}", device_id=f"d{n}", at_us=us, expires_at_us=us + 1) for n, us in enumerate(times))
    return record(tmp_path_factory.mktemp("made") / "ledger", *leases)


@pytest.fixture(autouse=True)
def root(root_made, tmp_path):
    """Three leases granted at 2026-11-01, :02 and :04."""
    return copied(root_made, tmp_path / "ledger")


def leases(*arguments):
    done = run("query", "open_leases", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return [row["lease_id"] for row in json.loads(done.stdout)]


def test_without_a_name_the_queries_are_listed():
    done = run("query")
    assert done.exit_code == 0
    assert all(name in done.stdout and named.load(name).question in done.stdout for name in named.names())
    listed = json.loads(run("query", "--json").stdout)
    assert [each["name"] for each in listed] == named.names()
    assert {"name": "since", "type": "TIMESTAMP"}.items() <= listed[0]["variables"][0].items()


def test_options_and_set_narrow_a_query():
    assert leases() == ["l0", "l1", "l2"]
    assert leases("--since", "2026-11-01T00:00:02Z") == ["l1", "l2"]
    assert leases("--since", "2026-11-01", "--until", "2026-11-01T00:00:04") == ["l0", "l1"]
    assert leases("--device", "d1") == leases("--set", "device_id=d1") == ["l1"]
    assert leases("--run", "r") == ["l0", "l1", "l2"]
    assert leases("--run", "another") == [], "no run is recorded in this ledger: none is known to be wrong"
    assert leases("--until", "5200w") == []


def test_a_query_prints_a_table_csv_or_json_up_to_a_limit():
    assert "l2" in run("query", "open_leases").stdout
    done = run("query", "open_leases", "--csv", "--limit", "2")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["lease_id"] for row in rows] == ["l0", "l1"]
    assert rows[0]["granted_at"] == "2026-11-01T00:00:00.000000Z"
    assert done.stderr == "There are more than 2 rows; --limit shows more.\n"


def test_show_prints_what_runs_by_hand():
    text = named.load("open_leases").text
    assert run("query", "open_leases", "--show").stdout == text
    shown = run("query", "open_leases", "--show", "--device", "it's").stdout
    assert shown == "SET VARIABLE device_id = CAST('it''s' AS VARCHAR);\n" + text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["query", "open_lease"], "no query is named 'open_lease'; did you mean 'open_leases'?"),
        (["query", "open_leases", "--since", "soon"], "since 'soon' is not a date"),
        (["query", "open_leases", "--set", "step=1"], "open_leases reads no variable 'step'; it reads since, until"),
        (["query", "open_leases", "--json", "--csv"], "exclude one another"),
        (["query", "open_leases", "--ledger", "nowhere"], "nowhere is not a ledger"),
        (["schema", "leases"], "the ledger has no view 'leases'"),
        (["sql"], "For a shell, use DuckDB's own: duckdb -readonly ledger/ledger.duckdb"),
        (["sql", "FROM lease", "--token-file", "x"], "is for a controller; name one with --server"),
        (["sql", "FROM lease", "--ledger", "x", "--server", "http://h:1"], "exclude one another; give one of them"),
        (["sql", "FROM lease", "--server", "http://h:1", "--token-file", "none"], "--token-file none: "),
        (["sql", "FROM lease", "--server", "grpc://h:1"], "grpc://h:1"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_message(arguments, says):
    check_refused(run(*arguments), says)


def test_a_controller_is_asked_with_its_token(root, monkeypatch):
    token = "a-token-of-enough-characters-to-be-taken"
    (root.parent / "token").write_text(f"{token}\n")
    asked = ["sql", "select lease_id from lease order by 1", "--json", "--limit", "2"]
    with serve(root, token=token) as url:
        monkeypatch.setenv("ROSE_LEDGER", "nowhere")
        done = run(*asked, "--server", url, "--token-file", "token")
        assert [row["lease_id"] for row in json.loads(done.stdout)] == ["l0", "l1"]
        assert "more than 2 rows" in done.stderr
        refused = run(*asked, "--server", url)
        assert refused.exit_code != 0
        assert refused.stderr.startswith("rose: ")
        monkeypatch.setenv("ROSE_TOKEN", token)
        assert run(*asked, "--server", url).exit_code == 0
