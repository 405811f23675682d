"""Each hostile request to a real server is answered, never with 500, and the servers stay well."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.ledger.writer import LedgerWriter
from rose.pricing.api import app as api
from rose.pricing.api.questions import named
from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.gateway import Gateway
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.relay import RelayServer
from rose.transfer.wire.server import StoreServer
from tests import programs
from tests.hostile import HEADERS, TEXTS, answered, bodies, methods, paths, request
from tests.long_form import usual
from tests.runtime.scheduling.gateway.conftest import make_checkpoint
from tests.runtime.scheduling.stand_ins import STEP, VERDICT, report

RSS_MIB_MAX = 800
SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ledger"


def hostile(examples: int, *, long: int) -> settings:
    return settings(
        max_examples=usual(examples, long=long),
        deadline=None,
        database=None,
        derandomize=usual(True, long=False),
        suppress_health_check=[*HealthCheck],
    )


@pytest.fixture(scope="module", autouse=True)
def memory() -> Iterator[None]:
    before = psutil.Process().memory_info().rss
    yield
    assert (psutil.Process().memory_info().rss - before) >> 20 < RSS_MIB_MAX


def check(port: int, sent: bytes, wait_s: float = 60.0) -> None:
    status, answer = answered(port, sent, wait_s)
    assert status != 500, (sent[:2000], answer[:2000])


ENGINE = report("http://127.0.0.1:1", device_id="d", borrowed=True, lease_id="l", lease_left_ns=10**9, run_id="RUN")
HEARTBEAT = {
    "device_id": "d",
    "engines": [ENGINE.model_dump()],
    "seen": 0,
    "hold_s": 0.0,
    "fault": None,
    "host": "h",
    "host_facts": {"events_dropped": 0, "segments_waiting": 1, "waiting_s": 2.5, "problem": None},
    "clock": {"monotonic_ns": 5, "utc_ns": 6, "device_time_ns": 7},
}
OPEN = {
    "name": "n",
    "model": "m",
    "team": "t",
    "tags": {"a": "b"},
    "task": "k",
    "staleness_max": 1,
    "weight": 1.0,
    "priority": 0,
    "expires_s": 1.0,
    "trainer_device": "d",
    "resume": None,
    "fence": None,
    "key": "KEY",
}
TURN = {
    "input_ids": [1, 2, 3],
    "sampling_params": {"max_new_tokens": 4, "temperature": 0.5, "stop": ["x"]},
    "stream": False,
    "rose": {"trajectory_id": "t", "version_min": 0, "group_id": "g", "step": 1, "turn": 0, "key": "k"},
}
CONTROLLER = [
    *[("POST", "/heartbeat", HEARTBEAT)] * 6,
    ("POST", "/preempt", {"engine_id": "e0", "kv_tokens": 5, "reason": "r"}),
    ("POST", "/runs", OPEN),
    ("POST", "/runs/RUN/renew", {"fence": 1, "expires_s": 3600.0}),
    (
        "POST",
        "/runs/RUN/versions",
        {"fence": 1, "version": 1, "url": "http://127.0.0.1:1", "token": "t", "weights_sha256": "0" * 64},
    ),
    ("POST", "/runs/RUN/events", {"fence": 1, "events": [VERDICT, STEP]}),
    ("POST", "/runs/RUN/generate", TURN),
    ("POST", "/runs/RUN/generate", TURN),
    ("DELETE", "/runs/OTHER", {"fence": 1, "outcome": "ended", "reason": "r"}),
    ("POST", "/devices/d/drain", {"reason": "r"}),
    ("POST", "/devices/d/undrain", {}),
    ("GET", "/status", {}),
    ("GET", "/runs/RUN", {}),
]


SAMPLING = {"max_new_tokens": 4, "n": 2, "stop": ["x"], "min_new_tokens": 1, "temperature": 0.5}
GENERATE = {"text": ["a b", "c"], "sampling_params": SAMPLING, "return_logprob": True, "stream": True, "rid": "r"}
GENERATE |= {"weight_version": {"min_version": 0, "exact_version": "r/1"}, "rose": TURN["rose"], "session_id": "s"}
COMPLETION = {"model": "m", "prompt": [[3, 4], [5]], "max_tokens": 4, "n": 2, "seed": 1, "logprobs": 1, "stop": ["x"]}
COMPLETION |= {"logit_bias": {"3": 1.0}, "stream": True, "stream_options": {"include_usage": True}, "user": "u"}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "tool_calls": [CALLED]}]
CHAT = {"model": "m", "messages": MESSAGES, "tools": [CALLED], "response_format": {"type": "json_object"}}
INFERENCE = {
    "token_ids": [3],
    "sampling_params": {"max_tokens": 4, "n": 2, "logprobs": 1, "seed": 3},
    "cache_salt": "x",
}
UPDATE = {"model_path": "/nowhere", "weight_version": "7", "abort_all_requests": True}
APIS = [
    *[
        ("POST", "/generate", GENERATE),
        ("POST", "/runs/RUN/generate", GENERATE),
        ("POST", "/v1/completions", COMPLETION),
    ],
    *[("POST", "/v1/chat/completions", CHAT), ("POST", "/inference/v1/generate", INFERENCE)],
    *[("POST", "/tokenize", {"messages": MESSAGES}), ("POST", "/detokenize", {"tokens": [3], "model": "m"})],
    *[("POST", "/pause_generation", {"mode": "keep"}), ("POST", "/continue_generation", {})],
    *[("POST", "/abort_request", {"rid": "r", "abort_all": False}), ("POST", "/update_weights_from_disk", UPDATE)],
    *[
        ("POST", "/workers", {"url": "http://127.0.0.1:1"}),
        ("POST", "/v1/rl/engine/pause_generation", {"mode": "keep"}),
    ],
    *[("GET", path, {}) for path in ("/v1/models/m", "/server_info", "/v1/loads", "/flush_cache", "/workers/rose")],
]


class Controller(NamedTuple):
    port: int
    loop: asyncio.AbstractEventLoop
    faults: list[str]
    names: dict[str, str]


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    folder, port, faults = tmp_path_factory.mktemp("controller"), free_port(), list[str]()
    checkpoint = make_checkpoint(folder / "words")

    def gateway() -> Gateway:
        many = {"state": folder / "state", "writer": writer, "models": ["m"], "checkpoint": lambda _: checkpoint}
        return Gateway("127.0.0.1", port, **many)

    def open_run(**more: object) -> str:
        body = json.dumps({"name": "n", "model": "m", "expires_s": 3600.0, **more}).encode()
        _, answer = answered(port, request(b"POST", b"/runs", [], body))
        return str(json.loads(answer.partition(b"\r\n\r\n")[2])["run_id"])

    with LedgerWriter.open(folder / "ledger", "controller", "fleet") as writer, programs.in_thread(gateway) as loop:
        loop.set_exception_handler(lambda _, context: faults.append(str(context)))
        open_run(tags={"token": "anyone"})
        yield Controller(port, loop, faults, {"RUN": open_run(), "OTHER": open_run()})


def named_in(value: object, names: dict[str, str]) -> object:
    text = json.dumps(value)
    for name, meant in names.items():
        text = text.replace(f'"{name}"', json.dumps(meant))
    return json.loads(text)


@pytest.mark.parametrize("requests", [CONTROLLER, APIS], ids=["own", "apis"])
@hostile(120, long=4000)
@given(data=st.data())
def test_the_controller_answers_whatever_it_is_sent(
    controller: Controller, requests: list[tuple[str, str, object]], data: st.DataObject
) -> None:
    port, loop, faults, names = controller
    method, path, message = data.draw(st.sampled_from(requests))
    for name, meant in names.items():
        path = path.replace(name, meant)
    body = data.draw(bodies(named_in(message, {**names, "KEY": data.draw(st.sampled_from(["k0", "k1", "k2"]))})))
    way = data.draw(methods(method))
    # Turns wait for an engine, and heartbeats for as long as they say: who asked goes away.
    wait_s = 0.3 if any(word in path for word in ("generate", "heartbeat", "completions")) else 60.0
    check(port, request(way, data.draw(paths(path)), data.draw(HEADERS), body), wait_s)
    for sound in (b"/status", b"/metrics"):
        assert answered(port, request(b"GET", sound, [], b""))[0] == 200, body[:2000]
    assert loop.is_running()
    assert faults == []


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    versions = VersionStore(tmp_path_factory.mktemp("store"))
    for version in range(2):
        versions.publish(version, {"w": torch.full((10,), float(version))})
    with StoreServer(versions) as server:
        yield server


@pytest.fixture(scope="module")
def relay(store: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayServer]:
    with RelayServer(store.url, tmp_path_factory.mktemp("relay"), 1 << 30, retries=0) as server:
        yield server


WEIGHTS = [
    ("POST", "/v1/pins", {"version": 1, "have": 0}),
    ("POST", "/v1/acks", {"receiver": "r", "version": 1, "weights_sha256": "0" * 64}),
    ("PUT", "/v1/pins/" + "0" * 32, {}),
    ("DELETE", "/v1/pins/" + "0" * 32, {}),
    ("GET", "/v1/packages", {}),
    ("GET", "/v1/packages/00000000-anchor.json", {}),
    ("GET", "/v1/packages/00000001-from-00000000.json", {}),
    ("HEAD", "/v1/packages/00000000-anchor.json", {}),
    ("GET", "/v1/chunks/" + "0" * 64, {}),
]


def ask_for_weights(server: StoreServer | RelayServer, data: st.DataObject) -> None:
    port = int(server.url.rpartition(":")[2])
    method, path, message = data.draw(st.sampled_from(WEIGHTS))
    way = data.draw(methods(method))
    body = data.draw(bodies(message))
    check(port, request(way, data.draw(paths(path)), data.draw(HEADERS), body))
    assert answered(port, request(b"GET", b"/v1/packages", [], b""))[0] == 200


@hostile(60, long=2000)
@given(data=st.data())
def test_a_store_answers_whatever_it_is_sent(store: StoreServer, data: st.DataObject) -> None:
    ask_for_weights(store, data)


@hostile(60, long=2000)
@given(data=st.data())
def test_a_relay_answers_whatever_it_is_sent(relay: RelayServer, data: st.DataObject) -> None:
    ask_for_weights(relay, data)


QUERIES = {
    "/cost": {
        "period": "2026-01-01",
        "tz": "UTC",
        "provenance": "live",
        "by": "team",
        "view": "amortized",
        "tag": "x=y",
        "ledger": "ledger",
    },
    "/saved": {"period": "this-month", "tz": "Europe/Berlin"},
    "/forecast": {"month": "2026-01"},
    "/report": {"run": "run"},
    "/trust": {"ledger": "ledger"},
    "/metrics": {},
    "/openapi.json": {},
}
WORDS = TEXTS | st.sampled_from(
    [
        *("0001-01-01..9999-12-31", "9999d", "2026-W99", "2026-13", "-1d", "year"),
        *("tag:", "tag:x", "team", "a=b", "../../../etc/passwd", "marginal", "fully-loaded", "simulated"),
    ]
)


@pytest.fixture(scope="module")
def api_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("api") / "ledger"
    with LedgerWriter.open(folder, "w", "run"):
        pass
    with api.serve(named([str(folder)], None), "127.0.0.1", 0) as url:
        yield int(url.rpartition(":")[2])


def quoted(text: str) -> bytes:
    return b"".join(b"%%%02x" % byte for byte in text.encode(errors="surrogatepass"))


@hostile(60, long=2000)
@given(data=st.data())
def test_the_api_answers_whatever_it_is_asked(api_port: int, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([*QUERIES]))
    query = dict(QUERIES[path])
    for _ in range(data.draw(st.integers(0, 3))):
        query[data.draw(st.sampled_from([*QUERIES["/cost"]]) | TEXTS)] = data.draw(WORDS)
    pairs = [quoted(name[:200]) + b"=" + quoted(value[:5000]) for name, value in query.items()]
    target = (data.draw(paths(path)) + b"?" + b"&".join(pairs))[:60_000]
    way = data.draw(methods("GET"))
    body = data.draw(st.sampled_from([b""] * 9 + [b"x" * 100]))
    check(api_port, request(way, target, data.draw(HEADERS), body))
    assert answered(api_port, request(b"GET", b"/healthz", [], b""))[0] == 200
