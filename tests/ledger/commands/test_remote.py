"""`rose ledger serve` and `rose ledger forward` as processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from rose import cli
from rose.ledger.hosts import remote
from rose.ledger.writer import LedgerWriter

DOCUMENT = Path(__file__).parents[3].joinpath("docs", "ledger-gateway.md").read_text(encoding="utf-8")
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


@contextmanager
def serving(folder, *arguments):
    started = command(folder, "serve", "--ledger", "centre", "--listen", "127.0.0.1:0", *arguments)
    with subprocess.Popen(**started) as process:
        try:
            yield process, process.stdout.readline().split()[3]
        finally:
            process.kill()


@pytest.mark.long
def test_a_ledger_is_forwarded_and_read_from_afar(folder):
    with serving(folder, "--token-file", "token") as (process, url):
        forward = ("forward", "--ledger", "spool", "--to", url, "--once")
        said = json.loads(run(folder, *forward, "--token-file", "token", "--json").stdout)
        assert (said["segments"], said["events"], said["waiting"], said["problems"]) == (4, 3, 0, {})
        again = run(folder, *forward, ROSE_LEDGER_TOKEN=TOKEN)
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
        assert remote.query(url, "SELECT count(*) FROM lease", token=TOKEN).rows == [(3,)]
        refused = run(folder, *forward)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "the token was not sent" in refused.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


@pytest.mark.long
def test_a_forwarder_that_goes_on_says_what_it_did_and_ends_on_a_signal(folder):
    with serving(folder) as (_, url):
        started = command(folder, "forward", "--ledger", "spool", "--to", url, "--every", "0.1")
        with subprocess.Popen(**started) as process:
            assert "forwarded 4 segments, 3 events" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
    away = run(folder, "forward", "--ledger", "spool", "--to", url, "--once")
    assert away.returncode == 2
    assert "no gateway answers at grpc:" in away.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serve", "--listen", "8815"), "is not an address"),
        (("serve", "--listen", "0.0.0.0:0"), "give a token"),
        (("serve", "--tls-cert", "token"), "belong together"),
        (("serve", "--tls-cert", "token", "--tls-key", "gone"), "--tls-key gone: No such file"),
        (("serve", "--token-file", "gone"), "--token-file gone: No such file"),
        (("forward", "--ledger", "spool", "--to", "grpc://127.0.0.1:1", "--json"), "--json is for --once"),
        (("forward", "--ledger", "gone", "--to", "grpc://127.0.0.1:1", "--once"), "is not a ledger"),
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


@pytest.mark.parametrize("line", re.findall(r"^rose .+$", DOCUMENT, re.MULTILINE))
def test_a_documented_command_has_the_options_it_is_shown_with(line):
    command = typer.main.get_command(cli.app)
    words = shlex.split(line.partition(" > ")[0])[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("rose", words)


def test_the_documented_programs_run(folder):
    programs = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert len(programs) == 3
    with serving(folder, "--token-file", "token") as (_, url):
        (folder / "spool").rename(folder / "ledger")
        for program in programs:
            text = program.replace("grpc://127.0.0.1:8815", url).replace('"..."', repr(TOKEN))
            done = subprocess.run(
                [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=60, check=False
            )
            assert (done.returncode, done.stderr) == (0, "")
        events = remote.query(url, "SELECT kind, count(*) FROM event GROUP BY kind ORDER BY kind", token=TOKEN)
        assert events.rows == [("access", 1), ("lease", 3), ("power", 1)]
