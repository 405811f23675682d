import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger.files import catalog, layout
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests.client.fleet import fleet
from tests.runtime.conftest import until
from tests.runtime.training.frozenlake_fleet import FILE, engine
from tests.runtime.training.test_loop import learn


def start(url, folder):
    kept = ["-c", folder / "fleet.toml", "--checkpoint", folder / "kept", "--resume"]
    command = [sys.executable, "-m", "rose.cli", "train", "--url", url, *kept, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_a_trainer_that_is_killed_or_stopped_goes_on_where_it_was(tmp_path, tiny_policy):
    ledger = tmp_path / "ledger"
    layout.create(ledger)
    (tmp_path / "fleet.toml").write_text(FILE.format(cache=tmp_path, model=tiny_policy, steps=1000))
    rollouts = engine(tmp_path / "staging", pause_s=0.02)
    with (
        LedgerWriter.open(ledger, "controller", "fleet") as writer,
        fleet(tmp_path / "state", rollouts, writer=writer, model=str(tiny_policy)) as service,
    ):
        runs = service.gateway.controller.runs
        killed = start(service.url, tmp_path)
        until(lambda: any(run.facts.version for run in runs))
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        (run,) = runs
        before = run.facts.version
        stopped = start(service.url, tmp_path)
        until(lambda: run.facts.version > before + 1)
        stopped.send_signal(signal.SIGINT)
        output, errors = stopped.communicate(timeout=60)
        assert stopped.returncode == 130, errors
        assert "continue it with --resume" in errors
        assert (run.facts.fence, run.is_open) == (2, True)
        assert [json.loads(line)["step"] for line in output.splitlines()][-1] <= run.facts.version - 1
        steps = run.facts.version + 1
        learn(tmp_path, service.url, tiny_policy, steps=steps)
        assert (run.facts.fence, run.facts.state, run.facts.version) == (3, "closed", steps)
    assert Ledger(ledger).verify().ok, Ledger(ledger).verify().problems
    with catalog.connect(ledger) as connection:
        recorded = connection.execute("SELECT step, policy_version, trajectories FROM step ORDER BY step").fetchall()
        (verdicts,) = connection.execute("SELECT count(*) FROM verdict").fetchone()
    assert recorded == [(step, step + 1, 8) for step in range(steps)]
    assert verdicts == 8 * steps


WRONG = [
    (["--resume"], "--resume needs --checkpoint"),
    (["--device", "gpu-7"], "no agent on this host has device 'gpu-7'"),
    (["-c", "nowhere.toml"], "cannot read config nowhere.toml"),
    (["--url", "10.0.0.1:30100"], "--url '10.0.0.1:30100' must be the controller's root"),
    (["--checkpoint", "/dev/null/folder"], "--checkpoint /dev/null/folder cannot be used ("),
]


def test_options_that_do_not_go_together_are_named():
    for arguments, message in WRONG:
        done = CliRunner().invoke(cli.app, ["train", "--url", "http://127.0.0.1:9", *arguments])
        assert (done.exit_code, done.output.count("\n")) == (2, 1)
        assert message in done.output


def test_a_fleet_that_is_not_there_is_said_before_a_model_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = CliRunner().invoke(cli.app, ["train", "--url", "http://127.0.0.1:9"])
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "no controller answers at http://127.0.0.1:9" in done.output
    done = CliRunner().invoke(cli.app, ["train"])
    assert "start it with `rose up`, or give its address by --url" in done.output
