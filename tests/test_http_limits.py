"""Connections that send half a request, or none, keep nobody from the servers, and are closed after a while."""

from __future__ import annotations

import http.client
import itertools
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from rose.http_limits import connections_max, raise_file_limit
from tests import programs

#: Files that a server may open, and connections that strangers make.
FILES, STRANGERS = 512, 600
ASKED_S = 60.0
HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
BODY = b"POST /%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"

#: Each serves until it is killed, and prints its port. Its limits are short.
SHORT = """
import asyncio, pathlib, resource, signal, sys, time
from rose import http_limits
http_limits.HEAD_S = 2.0
http_limits._LIMITS_S.update(head=2.0, body=2.0, answer=2.0)
folder = pathlib.Path(sys.argv[1])
"""
CONTROLLER = """
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.gateway import Gateway
async def serve():
    port = free_port()
    gateway = Gateway("127.0.0.1", port, agent_token="an-agents-token-of-the-tests")
    await gateway.start()
    print(port, flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())
"""
STORE = """
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire import server as wire
wire._IDLE_S = wire.BODY_S = 2.0
with wire.StoreServer(VersionStore(folder / "store")) as server:
    print(server.url.rpartition(":")[2], flush=True)
    signal.pause()
"""
API = """
from rose.ledger import layout
from rose.pricing.api import app
from rose.pricing.api.questions import named
with app.serve(named([str(layout.create(folder / "ledger"))], None), "127.0.0.1", 0) as url:
    print(url.rpartition(":")[2], flush=True)
    signal.pause()
"""
LARGE_BYTES = 16 << 20
#: Answers every request with so much.
LARGE = f"""
from rose.runtime.scheduling.gateway.http_server import HttpServer
from starlette.responses import Response
from rose.runtime.engines.ports import free_port
async def serve():
    port = free_port()
    server = HttpServer(Response(bytes({LARGE_BYTES})), "127.0.0.1", port)
    await server.start()
    print(port, flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())
"""
LIMIT = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))\n"
SERVERS = {
    "controller": (CONTROLLER, "/health"),
    "store": (STORE, "/v1/packages"),
    "api": (API, "/healthz"),
    "large": (LARGE, "/"),
}


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """This process makes the connections of all strangers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_file_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def served(kind: str, folder: Path) -> Iterator[int]:
    """The port of a server in a process that may open few files."""
    with programs.started(SHORT + LIMIT + SERVERS[kind][0], folder) as (process, output):
        try:
            yield int(output.readline())
        finally:
            process.kill()


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served("controller", tmp_path_factory.mktemp("controller")) as port:
        yield port


def status_of(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASKED_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def is_gone(connection: socket.socket) -> bool:
    """Whether the server closes the connection, which may say something before."""
    connection.settimeout(ASKED_S)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


#: What strangers send, one after another.
SENT = (HEAD, BODY, b"", b"\r\n")
BODIES_TO = {"controller": b"heartbeat", "store": b"v1/pins", "api": b"cost"}


@pytest.mark.parametrize("kind", ["controller", "store", "api"])
def test_strangers_hold_no_connection(kind: str, tmp_path: Path) -> None:
    path = SERVERS[kind][1]
    sent = itertools.cycle([text.replace(b"%b", BODIES_TO[kind]) for text in SENT])
    with served(kind, tmp_path) as port, ExitStack() as connections:
        answers = []
        done = threading.Event()

        def ask() -> None:
            while not done.is_set() and len(answers) < 10_000:
                answers.append(status_of(port, path))
                time.sleep(0.01)

        caller = threading.Thread(target=ask)
        caller.start()
        strangers = []
        for _ in range(STRANGERS):
            stranger = connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(ConnectionError):
                stranger.sendall(next(sent))
            strangers.append(stranger)
        asked = len(answers)
        assert all(is_gone(stranger) for stranger in strangers)
        done.set()
        caller.join()
        assert len(answers) > asked
        assert set(answers) == {200}


def test_a_client_that_waits_for_the_server_is_not_cut(controller: int) -> None:
    agent = http.client.HTTPConnection("127.0.0.1", controller, timeout=ASKED_S)
    # The first answer says what is wanted of the device; the second is held back.
    for seen in (0, 1):
        body = json.dumps({"device_id": "d", "engines": [], "seen": seen, "hold_s": 3})
        agent.request("POST", "/heartbeat", body, {"Authorization": "Bearer an-agents-token-of-the-tests"})
        answer = agent.getresponse()
        assert (answer.status, json.load(answer)["wanted_ns"]) == (200, {})
    agent.close()


def test_a_body_that_comes_slowly_is_taken(controller: int) -> None:
    tokens = b"1," * (80 << 10)
    body = b'{"input_ids": [' + tokens + b'1], "sampling_params": {"n": 2}}'
    head = b"POST /runs/none/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", controller)) as client:
        client.sendall(head)
        for begin in range(0, len(body), 80 << 10):
            time.sleep(1.5)
            client.sendall(body[begin : begin + (80 << 10)])
        client.settimeout(ASKED_S)
        assert client.recv(4096).startswith(b"HTTP/1.1 400")


def test_a_head_without_an_end_is_given_up(controller: int) -> None:
    with socket.create_connection(("127.0.0.1", controller)) as stranger:
        stranger.settimeout(ASKED_S)
        stranger.sendall(HEAD)
        with pytest.raises(ConnectionError):
            stranger.sendall(b"x" * 60_000_000)


def test_a_client_that_sends_requests_and_takes_no_answer_is_cut(controller: int) -> None:
    asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", controller)) as stranger:
        stranger.settimeout(ASKED_S)
        with pytest.raises(ConnectionError):
            stranger.sendall(asked * 1_000_000)
    assert status_of(controller, "/health") == 200


def test_a_client_that_takes_a_large_answer_slowly_is_served_and_one_that_takes_none_is_cut(tmp_path: Path) -> None:
    asked = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with (
        served("large", tmp_path) as port,
        socket.create_connection(("127.0.0.1", port)) as slow,
        socket.create_connection(("127.0.0.1", port)) as silent,
    ):
        for client in (slow, silent):
            client.settimeout(ASKED_S)
            client.sendall(asked)
        length = 0
        while length < LARGE_BYTES:
            part = slow.recv(2 << 20, socket.MSG_WAITALL)
            assert part
            length += len(part)
            time.sleep(0.5)
        taken = 0
        with suppress(ConnectionError):
            while part := silent.recv(2 << 20):
                taken += len(part)
        assert taken < LARGE_BYTES


def test_the_file_limit_is_raised_to_what_the_host_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    assert connections_max() == 1024
    raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
