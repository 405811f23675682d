import csv
import io
import json
import subprocess
import sys
from functools import partial

import pytest
import typer

from rose.ledger.commands.ledger import ledger_app
from rose.ledger.commands.query import sql_command
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.ledger import Ledger
from tests.ledger.commands.conftest import check_refused, invoke
from tests.ledger.conftest import close_epochs, copied, record

app = typer.Typer()
app.command("sql")(sql_command)
app.add_typer(ledger_app, name="ledger")
run = partial(invoke, app)
QUERY = "SELECT lease_id, reason, event_time FROM lease_event ORDER BY lease_id"


@pytest.fixture(scope="module")
def made(tmp_path_factory, lease):
    reasons = (None, "a, [b]", None)
    leases = (lease(lease_id=f"l{n}", at_us=n * 1_000_000, reason=reason) for n, reason in enumerate(reasons))
    return record(tmp_path_factory.mktemp("made") / "ledger", *leases)


@pytest.fixture(autouse=True)
def root(made, tmp_path):
    return copied(made, tmp_path / "ledger")


def test_importing_the_commands_loads_no_database():
    code = "import sys, rose.ledger.commands; print(sorted({'duckdb', 'pyarrow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_sql_prints_a_table_with_every_cell_whole():
    done = run("sql", "SELECT repeat('x', 300) AS long, 'a [b]' AS other")
    assert done.exit_code == 0
    assert "x" * 300 in done.stdout
    assert "a [b]" in done.stdout


def test_sql_prints_json_and_csv():
    rows = json.loads(run("sql", QUERY, "--json").stdout)
    assert rows[1] == {"lease_id": "l1", "reason": "a, [b]", "event_time": "1970-01-01T00:00:01.000000Z"}
    assert rows[0]["reason"] is None
    lines = list(csv.reader(io.StringIO(run("sql", QUERY, "--csv").stdout)))
    assert lines[:2] == [["lease_id", "reason", "event_time"], ["l0", "", "1970-01-01T00:00:00.000000Z"]]


def test_sql_reads_standard_input_and_says_when_rows_are_left_out():
    done = run("sql", "-", "--limit", "2", "--json", stdin=QUERY)
    assert len(json.loads(done.stdout)) == 2
    assert "more than 2 rows; --limit shows more" in done.stderr


def test_the_ledger_is_taken_from_option_or_environment(root, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    root.rename(elsewhere)
    assert run("sql", "FROM lease").exit_code == 2
    assert run("sql", "FROM lease", "--ledger", elsewhere).exit_code == 0
    monkeypatch.setenv("ROSE_LEDGER", str(elsewhere))
    assert run("sql", "FROM lease").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sql", "DROP VIEW lease"], "a DROP statement was given"),
        (["sql", "FROM lease", "--ledger", "nowhere"], "nowhere is not a ledger"),
        (["sql", "FROM lease", "--json", "--csv"], "exclude one another"),
        (
            ["sql", "SELECT count(*) FROM range(100000000000) WHERE range % 3 = 1", "--timeout", "0.1"],
            "longer than 0.1 s",
        ),
        (["ledger", "verify", "--ledger", "nowhere"], "nowhere is not a ledger"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_message(arguments, says):
    check_refused(run(*arguments), says)


def test_verify_says_sound_or_names_every_problem(root, lease):
    record(root, *(lease(event_id="same", reason=reason, at_us=1) for reason in ("one", "\x1b[2Jother")))
    done = run("ledger", "verify")
    assert done.exit_code == 0
    assert "The ledger is sound." in done.stdout
    assert "1 faults of events" in done.stdout
    assert "w/4: event 'lease': event_id must be that of one event" in done.stdout
    path = sorted((root / "live/w/000000").iterdir())[1]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    done = run("ledger", "verify")
    assert done.exit_code == 1
    assert f"{path.relative_to(root)}: its bytes were changed" in done.stdout
    done = run("ledger", "verify", "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert len(report["writers"][0]["problems"]) == 1


def test_text_of_events_moves_no_terminal_and_is_no_formula():
    text = "SELECT '=1+1' AS \"@f\", -1 AS n, chr(27) || '[2J' AS e, 'nan'::DOUBLE AS x"
    assert "\x1b" not in run("sql", text).stdout
    assert r"\x1b[2J" in run("sql", text).stdout
    assert list(csv.reader(io.StringIO(run("sql", text, "--csv").stdout))) == [
        ["'@f", "n", "e", "x"],
        ["'=1+1", "-1", "\x1b[2J", "nan"],
    ]
    done = run("sql", text, "--json")
    assert json.loads(done.stdout) == [{"@f": "=1+1", "n": -1, "e": "\x1b[2J", "x": None}]
    assert done.stderr == "JSON has no NaN and no infinity: null stands for 1 such numbers.\n"


def test_restore_brings_back_what_is_there_and_names_what_is_not(root, lease):
    close_epochs(root)
    for _ in range(2):
        compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    assert archive.archive(Ledger(root), older_than_days=30, to="away", delete=True, grace_s=0).left == 1
    missing = run("ledger", "restore", "--from", "elsewhere")
    assert (missing.exit_code, "Not found: file://" in missing.stdout) == (1, True)
    assert "0 files with" in run("ledger", "restore", "--from", "away", "--since", "2026-01-01").stdout
    assert "1 files with 3 events" in run("ledger", "restore", "--from", "away").stdout
