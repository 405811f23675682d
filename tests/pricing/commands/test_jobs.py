import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer

from rose.events import Lease
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep.jobs import Job, history, run_job
from rose.pricing.commands.jobs import jobs_app, planned_jobs
from tests.ledger.commands.conftest import check_refused, invoke
from tests.ledger.conftest import ask, record

ROSE = str(Path(sys.executable).with_name("rose"))
app = typer.Typer()
app.add_typer(jobs_app, name="jobs")
run = partial(invoke, app, "jobs")
pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROSE_LEDGER", raising=False)
    granted = Lease(lease_id="l", action="granted", kv_budget_bytes=100, compute_share=1.0, expires_at_us=4 * 10**15)
    return record(tmp_path / "ledger", granted)


def test_running_a_job_says_how_it_ended_and_records_it(root):
    done = run("run", "audit", "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert (said["job"], said["status"], said["result"]["events"]) == ("audit", "ok", 1)
    assert history(Ledger(root))["audit"].started_us == said["started_us"]
    done = run("run", "archive", "--archive-to", "memory://x", "--archive-after", "1d")
    assert done.exit_code == 1
    assert "archive: failed in " in done.stdout


def test_a_job_that_runs_already_is_no_error(root):
    def inner(root):
        return {"exit_code": (done := run("run", "audit")).exit_code, "said": done.stdout}

    result = run_job(Ledger(root), Job("audit", inner, 300)).result
    assert result["exit_code"] == 0
    assert f"audit: skipped: already running in the process with pid {os.getpid()}" in str(result["said"])


def test_settings_are_taken_from_the_options(tmp_path):
    planned = planned_jobs("a", "36h", True, tmp_path / "a.toml")
    assert list(planned) == ["compact", "roll-up", "audit", "archive", "alerts"]
    assert planned["archive"].run.keywords == {"older_than_days": 1.5, "to": "a", "delete": True}
    assert planned["alerts"].run.keywords == {"file": tmp_path / "a.toml"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "audit", "--ledger", "nowhere"], "nowhere is not a ledger"),
        (["serve", "--ledger", "nowhere"], "nowhere is not a ledger"),
        (["run", "dance"], "job 'dance' is not known; the jobs are compact, roll-up, audit, archive, alerts"),
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
