"""`rose ledger forward` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger.hosts.remote import RemoteLedger
from rose.ledger.writer import LedgerWriter
from tests.ledger.hosts.served import serve

TOKEN = "t0ken-of-enough-characters"


@pytest.fixture
def folder(tmp_path, lease):
    with LedgerWriter.open(tmp_path / "spool", "host1-agent", "r") as writer:
        for n in range(3):
            writer.record(lease(lease_id=f"l{n}"))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return tmp_path


def command(folder, *arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROSE_")}
    return {
        "args": [sys.executable, "-m", "rose.cli", "ledger", *arguments],
        "cwd": folder,
        "env": {**environment, **variables},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def run(folder, *arguments, **variables):
    return subprocess.run(**command(folder, *arguments, **variables), timeout=60, check=False)


def test_a_ledger_is_forwarded_and_read_from_afar(folder):
    with serve(folder / "centre", token=TOKEN) as url:
        forward = ("forward", "--ledger", "spool", "--to", url, "--once")
        said = json.loads(run(folder, *forward, "--token-file", "token", "--json").stdout)
        assert (said["segments"], said["events"], said["waiting"], said["problems"]) == (4, 3, 0, {})
        again = run(folder, *forward, ROSE_TOKEN=TOKEN)
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
        assert RemoteLedger(url, token=TOKEN).query("SELECT count(*) FROM lease").rows == [(3,)]
        refused = run(folder, *forward)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "the token is missing" in refused.stderr


def test_a_forwarder_that_goes_on_says_what_it_did_and_ends_on_a_signal(folder):
    with serve(folder / "centre") as url:
        started = command(folder, "forward", "--ledger", "spool", "--to", url, "--every", "0.1")
        with subprocess.Popen(**started) as process:
            assert "forwarded 4 segments, 3 events" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
    away = run(folder, "forward", "--ledger", "spool", "--to", url, "--once")
    assert away.returncode == 2
    assert f"no controller answers at {url}" in away.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("forward", "--ledger", "spool", "--to", "http://127.0.0.1:1", "--json"), "--json is for --once"),
        (("forward", "--ledger", "gone", "--to", "http://127.0.0.1:1", "--once"), "is not a ledger"),
    ],
)
def test_what_cannot_be_carried_out_is_named(folder, arguments, says, monkeypatch):
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("ROSE_")]:
        monkeypatch.delenv(name)
    # In this process: nothing is served or forwarded, and the other tests run the command itself.
    done = CliRunner().invoke(cli.app, ["ledger", *arguments])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
