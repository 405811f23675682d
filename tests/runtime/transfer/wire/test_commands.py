from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose.cli import app
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.wire.receiver import Receiver
from tests.runtime.transfer.served import process, put, run_command, until


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["weights", "relay", *arguments])


def test_a_relay_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    put(tmp_path / "store", 0, None, [b"1234"])
    (tmp_path / "token").write_text("token-of-the-tests\n")
    arguments = ["--origin", (tmp_path / "store").as_uri(), "--folder", str(tmp_path / "cache")]
    options = ["--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"), "--max-mb-per-s", "100"]
    output = tmp_path / "output"
    with process(run_command, ["weights", "relay", *arguments, *options], output) as relay:
        until(lambda: output.exists() and "(Ctrl-C ends it)" in output.read_text())
        url = output.read_text().split(" at ")[1].split()[0]
        with pytest.raises(TransferError, match="answered 401"):
            Receiver(url, None, tmp_path / "staging").latest()
        staged = Receiver(url, "token-of-the-tests", tmp_path / "staging").fetch(0, None)
        assert staged.version == 0
        assert "cache of another relay" in run(*arguments, "--listen", "127.0.0.1:0").stderr
        assert relay.pid is not None
        os.kill(relay.pid, signal.SIGTERM)
        relay.join(10)
        assert relay.exitcode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--origin", "weights"], "url is 'weights': give http://HOST:PORT"),
        (["--origin", "nosuch://x"], "url is 'nosuch://x': "),
        (["--origin", "http://trainer:1", "--listen", "8816"], "'8816' is not an address; give HOST:PORT"),
        (["--origin", "http://trainer:1", "--listen", "0.0.0.0:0"], "can be reached from other machines: give a token"),
        (["--origin", "http://trainer:1", "--token-file", "nowhere"], "--token-file nowhere: "),
        (["--origin", "http://trainer:1", "--origin-token-file", "/dev/null"], "/dev/null is empty"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("ROSE_WEIGHTS_TOKEN", "ROSE_WEIGHTS_ORIGIN_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    done = run("--folder", "cache", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("rose: ")
    assert says in done.stderr


def test_the_command_line_loads_no_torch() -> None:
    program = (
        "import sys, rose.cli; print(sorted({'torch', 'numba', 'aiohttp', 'fsspec'} & set(sys.modules)));"
        "from rose.runtime.transfer.wire import receiver, relay; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse\n", "a relay needs no torch either"
