"""A controller whose process stands still is given up; one that says that it is there is waited for."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from rose import client
from rose.client import silence
from tests.client.fleet import MODEL


def turn(finish_reason):
    meta = {"finish_reason": finish_reason, "output_token_logprobs": [[-0.5, 5, None]], "rose": {"versions": [0]}}
    return {"output_ids": [5], "meta_info": meta}


class Controller(BaseHTTPRequestHandler):
    """It opens a run, and begins what is streamed. All else is answered once it is `over`, if it `answers` at all; of
    those who ask whether it is there, every second one."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/runs":
            self.answer({"run_id": "r", "fence": 1, "version": 0})
            return
        if body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: " + json.dumps(turn(None)).encode() + b"\n\n")
        self.server.over.wait(60)
        if self.server.answers:
            self.answer(turn({"type": "length"}))

    def do_GET(self):
        if not self.server.answers:
            self.server.over.wait(60)
            return
        self.server.asked += 1
        if self.server.asked % 2:
            self.answer({})
        else:
            # A connection that is merely closed is asked for anew by aiohttp.
            self.wfile.write(b"nothing that it could read\r\n\r\n")

    def answer(self, message):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(message).encode())

    def log_message(self, *_):
        pass


@contextmanager
def controller(*, answers=False):
    with ThreadingHTTPServer(("127.0.0.1", 0), Controller) as server:
        server.answers, server.over, server.asked = answers, threading.Event(), 0
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()


def generate(run, _parts):
    run.generate([[1]], progress=None)


def stream(run, parts):
    async def scenario():
        async for part in run.stream([1]):
            parts.append(part.output_ids)

    asyncio.run(scenario())


@pytest.mark.parametrize(("make", "begun"), [(generate, []), (stream, [[5]])])
def test_turns_of_a_controller_that_stands_still_are_given_up(make, begun):
    parts = []
    with ThreadPoolExecutor(1) as pool, controller() as there:
        run = client.open_run(there.url, name="n", model=MODEL, away_s=0.6)
        with pytest.raises(client.ControllerAwayError, match=r"did not answer for 1 s \(it stands still\).*resume"):
            pool.submit(make, run, parts).result(20)
        run.leave()
    assert parts == begun


def test_a_controller_that_is_there_is_waited_for_whatever_passes(monkeypatch):
    minutes = itertools.count()
    monkeypatch.setattr(silence, "_ASK_S", 0.005)
    # Whenever it is looked at, a minute has passed.
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))
    with ThreadPoolExecutor(1) as pool, controller(answers=True) as there:
        run = client.open_run(there.url, name="n", model=MODEL)
        making = pool.submit(run.generate, [[1]], progress=None)
        while there.asked < 20 and not making.done():
            time.sleep(0.01)
        there.over.set()
        (generation,) = making.result(20)
        run.leave()
    assert generation.output_ids == [5]
