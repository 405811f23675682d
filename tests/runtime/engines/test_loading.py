"""Engines that take long to answer: those that go on loading are waited for, and those that hang are not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rose.runtime.coserving.hooks.settings import PluginSettings
from rose.runtime.engines import sglang
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineError, EngineProcess, EngineSpec, Loading

#: Computes or sleeps for a while, and answers from then on.
_ENGINE = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

port, work, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

ends = time.monotonic() + seconds
while time.monotonic() < ends:
    if work == "compute":
        sum(range(10_000))
    else:
        time.sleep(0.05)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a second, with as little work in it."""
    monkeypatch.setattr(sglang, "WINDOW_S", 1.0)
    monkeypatch.setattr(sglang, "_COMPUTED_S", 0.1)
    monkeypatch.setattr(sglang, "_READ_BYTES", 5 << 20)


@pytest.fixture
def engine(tmp_path: Path):
    """Start one that does such work for so many seconds: `engine(work, seconds)`."""
    started = []

    def start(work: str, seconds: float) -> EngineProcess:
        spec = EngineSpec(
            engine_id="slow",
            model="none",
            model_name="none",
            port=free_port(),
            max_total_tokens=1,
            plugin=PluginSettings("rollout", None, tmp_path, False),
            log=tmp_path / "engine.log",
        )
        process = EngineProcess(spec)
        words = [str(spec.port), work, str(seconds)]
        process._process = subprocess.Popen([sys.executable, "-c", _ENGINE, *words], start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def test_one_that_goes_on_loading_is_waited_for_beyond_its_time(engine, monkeypatch):
    monkeypatch.setattr(sglang, "WINDOW_S", 60.0)
    engine("compute", 1.5).wait_ready(timeout_s=0.5)


def test_computing_and_reading_are_loading(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(bytes(6 << 20))
    loading = Loading(lambda: [psutil.Process()], 0.0)
    file.read_bytes()
    assert loading.goes_on(100.0)
    ends = time.process_time() + 0.2
    while time.process_time() < ends:
        sum(range(10_000))
    assert loading.goes_on(200.0)
    assert not loading.goes_on(300.0)


def test_one_that_does_nothing_is_given_up(engine):
    hanging = engine("hang", 600.0)
    with pytest.raises(EngineError, match=r"did not answer within \d s"):
        hanging.wait_ready(timeout_s=1.0)
    assert not hanging.alive


def test_so_is_one_that_computes_for_ever(engine, monkeypatch):
    monkeypatch.setattr(sglang, "WINDOW_S", 60.0)
    spinning = engine("compute", 600.0)
    with pytest.raises(EngineError, match=r"did not answer within \d s"):
        spinning.wait_ready(timeout_s=0.3)
    assert not spinning.alive
