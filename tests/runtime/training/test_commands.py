"""`rose train` as its user runs it: a process with workers, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger import catalog, layout
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from tests.client.fleet import fleet
from tests.runtime.training.frozenlake_fleet import FILE, engine

STEPS = 3


def start(url, folder):
    command = [
        sys.executable, "-m", "rose.cli", "train", "--url", url, "-c", folder / "fleet.toml", "--checkpoint",
        folder / "kept", "--resume", "--json",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_trainer_that_is_killed_goes_on_where_it_was_and_its_workers_end(tmp_path, tiny_policy):
    ledger = tmp_path / "ledger"
    layout.create(ledger)
    (tmp_path / "fleet.toml").write_text(FILE.format(cache=tmp_path, model=tiny_policy, steps=STEPS))
    with (
        LedgerWriter.open(ledger, "controller", "fleet") as writer,
        fleet(
            tmp_path / "state", engine(tmp_path / "staging", pause_s=0.02), record=writer.record, model=str(tiny_policy)
        ) as there,
    ):
        runs = there.gateway.controller.runs
        first = start(there.url, tmp_path)
        wait_for(lambda: any((run.facts.version or 0) > 0 for run in runs))
        workers = psutil.Process(first.pid).children()
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        (run,) = runs
        second = start(there.url, tmp_path)
        output, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    assert (run.facts.fence, run.facts.state, run.facts.version) == (2, "closed", STEPS)
    assert [json.loads(line)["step"] for line in output.splitlines()][-1] == STEPS - 1
    assert workers
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    assert verify(ledger).ok, verify(ledger).problems
    with catalog.connect(ledger) as connection:
        steps = connection.execute("SELECT step, policy_version, trajectories FROM step ORDER BY step").fetchall()
        (verdicts,) = connection.execute("SELECT count(*) FROM verdict").fetchone()
    assert steps == [(step, step + 1, 8) for step in range(STEPS)]
    assert verdicts == 8 * STEPS


def test_ctrl_c_leaves_a_run_that_is_kept(tmp_path, tiny_policy):
    (tmp_path / "fleet.toml").write_text(FILE.format(cache=tmp_path, model=tiny_policy, steps=100))
    with fleet(tmp_path / "state", engine(tmp_path / "staging", pause_s=0.1), model=str(tiny_policy)) as there:
        process = start(there.url, tmp_path)
        wait_for(lambda: any(run.facts.version is not None for run in there.gateway.controller.runs))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        (run,) = there.gateway.controller.runs
        assert run.is_open
    assert process.returncode == 130, errors
    assert "--resume goes on with it" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "--resume needs --checkpoint"),
        (["--device", "gpu-7"], "no agent on this host has a device 'gpu-7'"),
        (["-c", "nowhere.toml"], "cannot read config nowhere.toml"),
    ],
)
def test_options_that_do_not_go_together_are_named(arguments, message):
    done = CliRunner().invoke(cli.app, ["train", "--url", "http://127.0.0.1:9", *arguments])
    assert done.exit_code == 2
    assert message in done.output
