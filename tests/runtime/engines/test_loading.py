"""Engines that take long to answer: those that go on loading are waited for, and those that hang are not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rose.runtime.coserving.hooks.settings import PluginSettings
from rose.runtime.engines import sglang
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineError, EngineProcess, EngineSpec

#: Computes, or reads, or sleeps, for a while, and answers from then on.
_ENGINE = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

port, work, seconds, file = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]

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
    elif work == "read":
        open(file, "rb").read()
        time.sleep(0.05)
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
        (tmp_path / "weights").write_bytes(bytes(1 << 20))
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
        words = [str(spec.port), work, str(seconds), str(tmp_path / "weights")]
        process._process = subprocess.Popen([sys.executable, "-c", _ENGINE, *words], start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize("work", ["compute", "read"])
def test_one_that_goes_on_loading_is_waited_for_beyond_its_time(engine, work):
    slow, began = engine(work, 3.0), time.monotonic()
    slow.wait_ready(timeout_s=1.5)
    assert time.monotonic() - began > 3.0


def test_one_that_does_nothing_is_given_up(engine):
    hanging = engine("hang", 600.0)
    with pytest.raises(EngineError, match=r"did not answer within \d s"):
        hanging.wait_ready(timeout_s=1.0)
    assert not hanging.alive


def test_so_is_one_that_computes_for_ever(engine):
    spinning, began = engine("compute", 600.0), time.monotonic()
    with pytest.raises(EngineError, match=r"did not answer within \d s"):
        spinning.wait_ready(timeout_s=1.0)
    assert time.monotonic() - began >= 4.0
    assert not spinning.alive
