import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose.cli import app
from rose.runtime.engines.ports import free_port
from tests.ledger.conftest import ask
from tests.runtime.conftest import ENVIRONMENT, until

RECIPE = re.search(
    r"^## Without a GPU\n(.*?)^## ",
    (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(),
    re.DOTALL | re.MULTILINE,
)[1]
FILE, COMMANDS = (
    re.search(rf"^```{language}\n(.*?)^```$", RECIPE, re.DOTALL | re.MULTILINE)[1] for language in ("toml", "sh")
)


def test_what_it_cannot_use_is_refused_by_name():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, named in (
            (["frozenlake-tiny", "--core", "99999"], "[99999]"),
            (["frozenlake-tiny", "--port", str(port)], f"port {port} "),
            (["no-such-model", "--port", str(free_port())], "'no-such-model'"),
        ):
            done = CliRunner().invoke(app, ["serve-cpu", *arguments])
            assert (done.exit_code != 0, named in done.stderr) == (True, True), done.output


def answers(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status == 200
    except urllib.error.URLError:
        return False


@contextmanager
def typed(line, log, environment):
    with log.open("wb") as output:
        program = [sys.executable, "-m", "rose.cli", *shlex.split(line)[1:]]
        process = subprocess.Popen(program, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.live
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_documented_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (first, second), port = sorted(os.sched_getaffinity(0))[:2], str(free_port())
    file = FILE.replace("[0]", f"[{first}]").replace("[1]", f"[{second}]").replace("30000", port)
    file = file.replace('name = "cores"', f'name = "cores-{port}"')
    Path("cores.toml").write_text(file)
    serve, up, train, status, down = COMMANDS.replace("30000", port).replace("--core 0", f"--core {first}").splitlines()
    environment, url = {**os.environ, **ENVIRONMENT}, f"http://127.0.0.1:{port}"
    request = {"text": "The capital of", "sampling_params": {"max_new_tokens": 4}}

    def finishes(line):
        with typed(line, tmp_path / "typed.log", environment) as process:
            assert process.wait(600) == 0, (tmp_path / "typed.log").read_text()
        return (tmp_path / "typed.log").read_text()

    with typed(serve, tmp_path / "own.log", environment) as own:
        until(lambda: own.poll() is not None or answers(url, "/health"))
        assert own.poll() is None, (tmp_path / "own.log").read_text()
        try:
            finishes(up)
            served = []
            with typed(train, tmp_path / "train.log", environment) as trainer:
                while trainer.poll() is None:
                    served.append(answers(url, "/generate", request))
                    time.sleep(1)
            assert trainer.returncode == 0, (tmp_path / "train.log").read_text()
            assert served.count(True) == len(served) > 0
            devices = {device["device_id"] for device in json.loads(finishes(f"{status} --json"))["devices"]}
            assert devices == {"core-0", "core-1"}
        finally:
            finishes(down)
        assert (own.poll(), answers(url, "/generate", request)) == (None, True)
    ledger = tmp_path / "cores-ledger"
    assert ask(ledger, "SELECT device_id FROM engine WHERE action = 'attached' AND role = 'serving'") == [("core-0",)]
    assert ask(ledger, "SELECT count(*) > 0, bool_and(source = 'engine') FROM request") == [(True, True)]
    assert ask(ledger, "SELECT count(*) > 0 FROM turn WHERE outcome = 'completed'") == [(True,)]
