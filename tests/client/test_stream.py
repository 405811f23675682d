import asyncio
import json
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rose import client
from rose.client.address import RunAddress
from rose.client.control import call
from rose.client.turns import TurnClient
from tests.client.fleet import MODEL, Engine, fleet


@asynccontextmanager
async def turns_of(service):
    def opened():
        run = call(service.url, "POST", "/runs", {"name": "grpo", "model": MODEL})
        version = {"fence": run["fence"], "version": 7, "url": "http://store"}
        call(service.url, "POST", f"/runs/{run['run_id']}/versions", version)
        return RunAddress(url=service.url, run_id=run["run_id"], fence=run["fence"])

    async with TurnClient(await asyncio.to_thread(opened)) as turns:
        yield turns


def test_a_turn_whose_line_breaks_off_is_taken_up_where_it_was(tmp_path):
    engine = Engine(pause_s=0.1)

    async def scenario():
        parts = []
        async with turns_of(service) as turns:
            async for part in turns.stream([7], {"max_new_tokens": 6}):
                parts.append(part)
                if len(parts) == 3:
                    (connection,) = turns._session.connector._acquired
                    connection.transport.abort()
        return parts

    with fleet(tmp_path, engine) as service:
        *parts, last = asyncio.run(scenario())
    assert len(engine.requests) == 1
    assert not any(part.anew for part in parts)
    for name in ("output_ids", "logprobs", "versions"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(last.generation, name)
    assert last.generation.output_ids == [1, 2, 3, 4, 5, 6]
    assert last.generation.versions == [7] * 6


class Still(BaseHTTPRequestHandler):
    """A controller that opens a run, and then keeps its connections silent; if `healthy`, it answers health checks."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/runs":
            self.answer({"run_id": "r", "fence": 1, "version": 0, "step": None, "expires_s": 60.0})
        elif self.server.healthy and len(self.server.keys) == 2:
            self.answer({"output_ids": [5], "meta_info": {"finish_reason": {"type": "length"}}})
        else:
            self.server.keys.append(body["rose"]["key"])
            self.server.over.wait(20)

    def do_GET(self):
        if self.server.healthy:
            self.answer({})
        else:
            self.server.over.wait(20)

    def answer(self, message):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(message).encode())

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("healthy", [False, True])
def test_a_controller_that_stands_still_is_given_up_and_a_healthy_one_is_waited_for(healthy):
    with ThreadingHTTPServer(("127.0.0.1", 0), Still) as server:
        server.healthy, server.keys, server.over = healthy, [], threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run = client.open_run(f"http://127.0.0.1:{server.server_address[1]}", name="n", model=MODEL, away_s=0.6)
        if healthy:
            assert run.generate([[1]], progress=None)[0].output_ids == [5]
        else:
            with pytest.raises(client.ControllerAwayError, match=r"did not answer for 1 s \(no data.*resume"):
                run.generate([[1]], progress=None)
        assert len(set(server.keys)) == 1
        server.over.set()
        run.leave()
        server.shutdown()
