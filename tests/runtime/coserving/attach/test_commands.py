import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose import private_files
from rose.cli import app
from rose.runtime.coserving.attach import attaching
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.engines.forkserver import fork_engine
from rose.runtime.engines.ports import free_port
from rose.runtime.platform import cpu
from tests.runtime.agent.agents_in_turn import until
from tests.runtime.agent.scripted_gateway import ScriptedGateway
from tests.runtime.agent.test_agent import LEASES, Device
from tests.runtime.conftest import ENVIRONMENT
from tests.runtime.coserving.owned_server import Owner, served
from tests.runtime.coserving.parties import OtherParty

ROOT = Path(__file__).parents[4]
START_TIMEOUT_S = 280.0


def rose(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeeds(*arguments):
    done = rose(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def fails(*arguments):
    done = rose(*arguments)
    assert done.exit_code == 1, done.output
    return done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(attaching, "FOLDERS", (tmp_path,))
    private_files.make(tmp_path / "rose-run")
    return tmp_path


@pytest.fixture
def page(folder):
    page = ArbiterPage.create(folder / "rose-run" / "gpu-0" / "page")
    yield page
    page.close()


def test_pages_of_this_host_are_listed(folder):
    assert "this user has no page on this host" in succeeds("attach")
    page = ArbiterPage.create(folder / "rose-run" / "gpu-0" / "page")
    assert succeeds("attach") == f"{page.path}: agent at work, no serving engine\n"
    with OtherParty(page.path, Party.SERVING) as engine:
        assert succeeds("attach") == f"{page.path}: agent at work, serving engine pid {engine.pid}\n"
    page.close()


def test_errors_are_messages(page):
    url = f"http://127.0.0.1:{free_port()}"
    assert "no SGLang server answers at" in fails("attach", "--url", url, "--page", page.path)
    assert "no SGLang server answers at" in fails("detach", "--url", url)
    assert "there is no page at" in fails("attach", "--url", url, "--page", page.path.with_name("none"))
    done = rose("attach", "--page", page.path)
    assert (done.exit_code, "--page needs --url" in done.stderr) == (2, True)


def test_a_server_whose_key_says_nothing_is_still_let_go(page):
    with served(Owner(keys=("a", "b"))) as url:
        assert "does not show its state to this key" in succeeds("attach", "--url", url, "--token", "b")
        assert "attached" in succeeds("attach", "--url", url, "--page", page.path, "--token", "b")
        assert succeeds("detach", "--url", url, "--token", "b") == f"detached {url}\n"


def fork_server_of(fork_server, model, log, *extra, **environment):
    """Start an owner's server, from a process that has loaded SGLang. Return (process, URL)."""
    port = free_port()
    arguments = [f"--model-path={model}", f"--port={port}", "--max-total-tokens=4096", "--skip-server-warmup"]
    arguments += ["--skip-tokenizer-init", "--dtype=float32", *cpu.ARGUMENTS, *extra]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROSE_")}
    own = {"OMP_NUM_THREADS": "1", "ROSE_ENGINE_ON_CPU": "1", **environment}
    with log.open("wb") as output:
        process = fork_engine(
            fork_server.path, arguments, {**clean, **cpu.ENVIRONMENT, **ENVIRONMENT, **own}, output, own_session=True
        )
    return process, f"http://127.0.0.1:{port}"


def is_well(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=60) as response:
            return response.status == 200
    except OSError:
        return False


def wait_well(process, url, log):
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_well(url):
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, "the server did not come up"
        time.sleep(0.5)


@contextmanager
def started(process, url, log):
    try:
        wait_well(process, url, log)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


@pytest.fixture(scope="module")
def one_server(tmp_path_factory, tiny_policy, fork_server):
    log = tmp_path_factory.mktemp("owner") / "one"
    with started(*fork_server_of(fork_server, tiny_policy, log), log) as url:
        yield url


@pytest.fixture
def server(one_server):
    succeeds("detach", "--url", one_server)
    return one_server


@pytest.fixture
def two_ranks(tmp_path, tiny_policy, fork_server):
    cores = sorted(os.sched_getaffinity(0))
    binding, log = f"{cores[0]}|{cores[-1]}", tmp_path / "two"
    server = fork_server_of(fork_server, tiny_policy, log, "--tp-size=2", SGLANG_CPU_OMP_THREADS_BIND=binding)
    with started(*server, log) as url:
        yield url


class Traffic:
    def __init__(self, url):
        self.answered, self.failed = 0, []
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        sampling = {"max_new_tokens": 8, "ignore_eos": True}
        body = json.dumps({"input_ids": [1, 2, 3], "sampling_params": sampling}).encode()
        headers = {"Content-Type": "application/json"}
        while not self._stop.is_set():
            try:
                request = urllib.request.Request(f"{self._url}/generate", data=body, headers=headers)
                with urllib.request.urlopen(request, timeout=60) as response:
                    assert len(json.loads(response.read())["output_ids"]) == 8
                assert is_well(self._url), "not well"
                self.answered += 1
            except Exception as error:
                self.failed.append(repr(error))

    def goes_on(self):
        before = self.answered
        until(lambda: self.answered >= before + 2 or self.failed, seconds=90)
        assert self.failed == []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def engine_state(url):
    return attaching.OwnedEngine(url).state()


@pytest.mark.live
def test_an_agent_comes_and_goes_and_no_request_fails(server, folder):
    path = folder / "rose-run" / "gpu-0" / "page"
    with Traffic(server) as traffic:
        traffic.goes_on()
        with OtherParty(path, Party.AGENT):
            succeeds("attach", "--url", server, "--page", path)
            page = ArbiterPage(path)
            assert page.alive(Party.SERVING)
            traffic.goes_on()
            assert page.get(Party.SERVING, Field.STEPS) > 0
            assert f"serving engine pid {page.get(Party.SERVING, Field.PID)} " in succeeds("attach")
            succeeds("detach", "--url", server)
            assert not page.alive(Party.SERVING)
            traffic.goes_on()
            succeeds("attach", "--url", server, "--page", path)
            traffic.goes_on()
        # It was killed. One that comes after it finds the engine where it was.
        assert page.alive(Party.SERVING)
        traffic.goes_on()
        with OtherParty(path, Party.AGENT):
            assert page.alive(Party.SERVING)
            traffic.goes_on()
        page.close()
    assert traffic.failed == []


@pytest.mark.live
def test_what_is_sent_to_a_scheduler_by_mistake_does_not_end_it(server):
    for number in ("1.5", "1e999"):
        request = urllib.request.Request(
            f"{server}/set_internal_state",
            data=b'{"server_args": {"rose_attach": ' + number.encode() + b"}}",
            headers={"Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            error.close()
        assert is_well(server)


@pytest.mark.live
@pytest.mark.long
def test_serving_of_two_ranks_is_refused_with_the_reason_and_serves_on(two_ranks, page):
    with Traffic(two_ranks) as traffic:
        traffic.goes_on()
        why = fails("attach", "--url", two_ranks, "--page", page.path)
        assert "serving runs with --tp-size 2: a page stands for one device" in why
        assert not page.alive(Party.SERVING)
        assert "--tp-size 2" in succeeds("attach"), "the page says who could not have it"
        traffic.goes_on()
    assert traffic.failed == []


@pytest.mark.live
def test_detaching_takes_back_at_once_what_was_lent(server, tmp_path):
    with ScriptedGateway() as gateway:
        device = Device(tmp_path, gateway)
        device.agent.start()
        try:
            succeeds("attach", "--url", server, "--page", device.spec.page)
            device.lend(gateway, step=1)
            succeeds("detach", "--url", server)
            assert device.page.serving_wants(), "a rollout step that runs has to give way"
            until(lambda: not device.lent())
            assert device.page.lease().number == 0
            until(lambda: device.agent.check() == "d0: no serving engine is attached to the device's page")
            succeeds("attach", "--url", server, "--page", device.spec.page)
            until(device.lent)
            succeeds("detach", "--url", server)
        finally:
            device.close()
        rows = device.rows(LEASES)
    assert rows[0][1:] == ("released", "no serving engine is attached to the device's page")
    assert len(rows) == 2


@pytest.mark.live
def test_the_documented_commands_run(server, page):
    text = (ROOT / "docs" / "coserving.md").read_text(encoding="utf-8")
    lines = re.findall(r"^rose (?:attach|detach).*$", text, re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(line)[1:]
        for option, value in (("--url", server), ("--page", str(page.path))):
            if option in words:
                words[words.index(option) + 1] = value
        succeeds(*words)
    assert engine_state(server).detached
