"""Half requests and idle connections keep nobody from the servers, and are closed."""

import http.client
import itertools
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from starlette.responses import Response

from rose.http_limits import connections_max, protocol, raise_file_limit
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.scheduling.gateway.http_server import HttpServer
from rose.transfer.store.store import VersionStore
from rose.transfer.wire import server as wire
from tests import programs

#: Connections that a server keeps, and those that strangers make.
CONNECTIONS_MAX, STRANGERS = 160, 200
ASKED_S = 60.0
HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
BODY = b"POST /%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
LARGE_BYTES = 16 << 20
LIMIT_S = 1.0
AGENT_TOKEN = "an-agents-token-of-the-tests"
SENT = (HEAD, BODY, b"", b"\r\n")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    controller, large = free_port(), free_port()
    with pytest.MonkeyPatch.context() as patch:
        for module in (protocol, wire):
            patch.setattr(module, "connections_max", lambda: CONNECTIONS_MAX)
        for module, name in ((protocol, "HEAD_S"), (wire, "_IDLE_S"), (wire, "BODY_S")):
            patch.setattr(module, name, LIMIT_S)
        patch.setattr(protocol, "_SWEEP_S", 0.1)
        for part in ("head", "body", "answer"):
            patch.setitem(protocol._LIMITS_S, part, LIMIT_S)
        with (
            programs.in_thread(lambda: Gateway("127.0.0.1", controller, agent_token=AGENT_TOKEN)),
            programs.in_thread(lambda: HttpServer(Response(bytes(LARGE_BYTES)), "127.0.0.1", large)),
            wire.StoreServer(VersionStore(tmp_path_factory.mktemp("servers") / "store")) as store,
        ):
            yield {"controller": controller, "store": int(store.url.rpartition(":")[2]), "large": large}


@pytest.fixture(scope="module")
def controller(ports: dict[str, int]) -> int:
    return ports["controller"]


def status_of(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASKED_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def is_gone(connection: socket.socket) -> bool:
    connection.settimeout(ASKED_S)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "path", "body_path"), [("controller", "/health", b"heartbeat"), ("store", "/v1/packages", b"v1/pins")]
)
def test_strangers_hold_no_connection(ports: dict[str, int], kind: str, path: str, body_path: bytes) -> None:
    port, sent = ports[kind], itertools.cycle([text.replace(b"%b", body_path) for text in SENT])
    with ExitStack() as connections:
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
        before = len(answers)
        assert all(is_gone(stranger) for stranger in strangers)
        done.set()
        caller.join()
        assert len(answers) > before
        assert set(answers) == {200}


def test_a_client_that_waits_for_the_server_is_not_cut(controller: int) -> None:
    agent = http.client.HTTPConnection("127.0.0.1", controller, timeout=ASKED_S)
    # The first answer says what is wanted of the device; the second is held back.
    seen, began_s = 0, time.monotonic()
    for hold_s in (0.0, 1.5 * LIMIT_S):
        body = json.dumps({"device_id": "d", "engines": [], "seen": seen, "hold_s": hold_s})
        agent.request("POST", "/heartbeat", body, {"Authorization": f"Bearer {AGENT_TOKEN}"})
        answer = agent.getresponse()
        reply = json.load(answer)
        assert (answer.status, reply["wanted_ns"]) == (200, {})
        seen = reply["seq"]
    assert time.monotonic() - began_s > LIMIT_S, "the second answer was not held back"
    agent.close()


def test_a_body_that_comes_slowly_is_taken(controller: int) -> None:
    tokens = b"1," * (160 << 10)
    body = b'{"input_ids": [' + tokens + b'1], "sampling_params": {"max_new_tokens": -1}}'
    head = b"POST /runs/none/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", controller)) as client:
        client.sendall(head)
        for begin in range(0, len(body), 80 << 10):
            time.sleep(0.4)
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
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", controller)) as stranger:
        stranger.settimeout(ASKED_S)
        with pytest.raises(ConnectionError):
            stranger.sendall(request * 1_000_000)
    assert status_of(controller, "/health") == 200


def test_a_client_that_takes_a_large_answer_slowly_is_served_and_one_that_takes_none_is_cut(
    ports: dict[str, int],
) -> None:
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    address = "127.0.0.1", ports["large"]
    with socket.create_connection(address) as slow, socket.create_connection(address) as silent:
        for client in (slow, silent):
            client.settimeout(ASKED_S)
            client.sendall(request)
        length = 0
        while length < LARGE_BYTES:
            part = slow.recv(4 << 20, socket.MSG_WAITALL)
            assert part
            length += len(part)
            time.sleep(0.4)
        taken = 0
        with suppress(ConnectionError):
            while part := silent.recv(2 << 20):
                taken += len(part)
        assert taken < LARGE_BYTES


def test_the_file_limit_is_raised_to_what_the_host_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    assert connections_max() == 1024
    raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
