import dataclasses
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer

from rose.ledger.commands.jobs import jobs_app
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep.jobs import Job, Settings, history, ledger_jobs, run_job
from tests.ledger.commands.conftest import check_refused, invoke
from tests.ledger.conftest import ask

ROSE = str(Path(sys.executable).with_name("rose"))
seen = []


def boom(root):
    raise LedgerError("first line\nsecond line" + " and much more" * 20)


def planned(settings):
    seen.append(settings)
    return [*ledger_jobs(settings), Job("boom", boom, 90)]


app = typer.Typer()
app.add_typer(jobs_app(planned), name="jobs")
run = partial(invoke, app, "jobs")
pytestmark = pytest.mark.usefixtures("root")


def test_running_a_job_says_how_it_ended_and_records_it(root):
    done = run("run", "audit", "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert (said["job"], said["status"], said["result"]["events"]) == ("audit", "ok", 1)
    assert history(Ledger(root))["audit"].started_us == said["started_us"]
    done = run("run", "boom")
    assert done.exit_code == 1
    assert "boom: failed in " in done.stdout


def test_a_job_that_runs_already_is_no_error(root):
    def inner(root):
        return {"exit_code": (done := run("run", "audit")).exit_code, "said": done.stdout}

    result = run_job(Ledger(root), Job("audit", inner, 300)).result
    assert result["exit_code"] == 0
    assert f"audit: skipped: already running in the process with pid {os.getpid()}" in str(result["said"])


def test_jobs_are_listed_with_how_they_stand():
    run("run", "boom")
    run("run", "audit")
    rows = {row["job"]: row for row in json.loads(run("run", "--json").stdout)}
    assert list(rows) == ["compact", "roll-up", "audit", "archive", "boom"]
    assert rows["compact"]["last"] is None
    assert rows["audit"]["last"]["ok"] is True
    assert rows["audit"]["due_us"] == rows["audit"]["last"]["succeeded_us"] + 86_400_000_000
    lines = {line.split()[1]: line for line in run("run").stdout.splitlines() if line.startswith("│")}
    assert "never" in lines["compact"]
    assert "first line second line and" in lines["boom"]
    assert " now " in lines["boom"]
    assert lines["boom"].rstrip("│ ").endswith("now")


def test_settings_are_taken_from_the_options(tmp_path):
    seen.clear()
    options = "--price-book b.toml --reports r --alerts a.toml --archive-to a --archive-after 36h"
    run("run", "audit", *options.split())
    (settings,) = seen
    assert dataclasses.asdict(settings) == {
        **dataclasses.asdict(Settings()),
        "price_book": "b.toml",
        "reports": tmp_path / "r",
        "alerts": tmp_path / "a.toml",
        "archive_to": "a",
        "archive_after_days": 1.5,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "audit", "--ledger", "nowhere"], "nowhere is not a ledger"),
        (["serve", "--ledger", "nowhere"], "nowhere is not a ledger"),
        (
            ["run", "dance"],
            "job 'dance' is not known; the jobs are compact, roll-up, audit, boom, archive, report, alerts",
        ),
        (["run", "archive"], "job 'archive' needs --archive-to and --archive-after"),
        (["run", "archive", "--archive-to", "x"], "give --archive-after"),
        (["serve", "--only", "dance"], "job 'dance' is not known"),
        (["serve", "--archive-after", "soon"], "'soon' is not a duration"),
        (["serve", "--archive-after", "0m"], "'0m' is not a duration"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_message(arguments, says):
    check_refused(run(*arguments), says)


@pytest.mark.long
def test_serving_runs_what_is_due_and_ends_cleanly(root):
    command = [ROSE, "jobs", "serve", "--ledger", root, "--only", "compact"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == f"running compact on {root} (Ctrl-C ends it)\n"
        assert " compact: ok in " in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "", "")
    assert ask(root, "SELECT job, ok FROM job") == [("compact", True)]
