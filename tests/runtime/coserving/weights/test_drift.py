from __future__ import annotations

import asyncio
import threading
import time

import aiohttp
import pytest
import torch

from rose.clock import monotonic_ns
from rose.ledger.layout import LedgerError
from rose.runtime.coserving.weights.drift import DriftGuard
from rose.runtime.coserving.weights.sync import EngineSync, Target
from rose.runtime.engines.ports import free_port
from rose.runtime.policy.drift import RETRY_NS
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.server import StoreServer
from tests.runtime.coserving.agent_of_engine import agent_of
from tests.runtime.coserving.hand_made_engine import HandMadeEngine, corrupt, random_weights, shape, stepped

V0 = random_weights()
V1 = stepped(V0, 1)
AUDIT_S = 100.0
LATER_NS = int(2 * AUDIT_S * 1e9)


class Guarded:
    """An engine at version 1 and its guard; `said` is what it told, in order."""

    def __init__(self, folder, url):
        self.engine = HandMadeEngine(folder / "engine", V0, dtype=torch.bfloat16)
        self.sync = EngineSync(self.engine, self.engine.staging, device_id="d0")
        assert self.sync.bring(Target("", 1, url)).ok
        self.said = []
        self.guard = DriftGuard(self.sync, AUDIT_S, take_out=self.said.append, record=self.record)

    def record(self, event, *, durable=None):
        self.said.append((event.ok, event.source, event.base_version))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = VersionStore(tmp_path_factory.mktemp("store"), tp=2, model=shape())
    store.publish(0, V0)
    store.publish(1, V1)
    with StoreServer(store) as running:
        yield running


@pytest.fixture
def guarded(server, tmp_path):
    return Guarded(tmp_path, server.url)


def test_an_engine_that_holds_its_weights_is_left_alone(guarded):
    guarded.guard.look(monotonic_ns() + LATER_NS)
    assert guarded.said == []


def test_no_audit_before_it_is_due(guarded):
    corrupt(guarded.engine, "model.norm.weight")
    guarded.guard.look(monotonic_ns())
    assert guarded.said == []
    assert guarded.sync.standing.trusted


def test_a_drifted_engine_is_taken_out_brought_back_and_trusted_again(guarded):
    corrupt(guarded.engine, "model.norm.weight")
    guarded.guard.look(monotonic_ns() + LATER_NS)
    assert not guarded.sync.standing.trusted
    guarded.guard.look(monotonic_ns())
    assert guarded.sync.standing.trusted
    assert guarded.engine.holds(V1, torch.bfloat16)
    out, drift, back = guarded.said
    assert out.startswith("drift: ")
    assert drift == (False, "audit", 1)
    assert back == (True, "trainer", None)


def test_an_engine_whose_acknowledgement_was_refused_is_taken_out_once_and_brought_back(guarded, tmp_path):
    def store(name, weights):
        made = VersionStore(tmp_path / name, tp=2, model=shape())
        made.publish(2, weights)
        return made

    expected = stepped(V1, 3)
    other, true = store("other", stepped(V1, 2)), store("true", expected)
    servers = [StoreServer(other).start()]
    url = servers[0].url

    def hand_over():
        servers.pop().stop()
        servers.append(StoreServer(true, port=int(url.rpartition(":")[2])).start())

    guarded.engine.before["commit"] = hand_over
    assert not guarded.sync.bring(Target("", 2, url)).ok
    guarded.guard.look(monotonic_ns())
    guarded.guard.look(monotonic_ns())
    servers.pop().stop()
    out, back = guarded.said
    assert "a sync left it" in out
    assert back == (True, "trainer", None)
    assert guarded.engine.holds(expected, torch.bfloat16)


def test_the_gateway_places_nothing_on_an_engine_until_it_is_trusted_again(guarded, tmp_path):
    """The agent of a dedicated device, with a real gateway."""
    port = free_port()
    agent = agent_of(guarded.engine, tmp_path, guarded.record, gateway_url=f"http://127.0.0.1:{port}")
    agent._lives.engine, agent._lives.sync, agent._lives._dead = guarded.engine, guarded.sync, None
    guard = DriftGuard(guarded.sync, AUDIT_S, take_out=agent._take_out, record=guarded.record)
    corrupt(guarded.engine, "model.norm.weight")

    async def watch():
        gateway = Gateway("127.0.0.1", port, agent_token="agent-token-of-tests")
        await gateway.start()
        alive = []
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for act in (
                agent._control.beat,
                lambda: guard.look(monotonic_ns() + LATER_NS),
                agent._control.beat,
                lambda: guard.look(monotonic_ns()),
                agent._control.beat,
            ):
                await asyncio.to_thread(act)
                async with session.get("/status") as response:
                    (worker,) = (await response.json())["devices"][0]["engines"]
                    alive.append(worker["alive"])
        await gateway.stop()
        return alive

    assert asyncio.run(watch()) == [True, False, False, False, True]


def test_one_that_cannot_be_brought_back_stays_out_and_is_tried_again_later(guarded):
    corrupt(guarded.engine, "model.norm.weight")
    guarded.guard.look(monotonic_ns() + LATER_NS)
    refused = {"taken": False}
    post, guarded.engine.post = guarded.engine.post, lambda *_: [refused["taken"]]
    guarded.guard.look(monotonic_ns())
    assert guarded.said[-1] == (False, "trainer", None)
    guarded.guard.look(monotonic_ns())
    assert len(guarded.said) == 3
    guarded.engine.post = post
    guarded.guard.look(monotonic_ns() + RETRY_NS)
    assert guarded.said[-1] == (True, "trainer", None)
    assert guarded.sync.standing.trusted


def test_the_engine_is_brought_back_although_the_ledger_cannot_be_written(guarded):
    def full(event, *, durable=None):
        raise LedgerError("no room")

    guard = DriftGuard(guarded.sync, AUDIT_S, take_out=guarded.said.append, record=full)
    corrupt(guarded.engine, "model.norm.weight")
    guard.look(monotonic_ns() + LATER_NS)
    guard.look(monotonic_ns())
    assert guarded.sync.standing.trusted


def test_its_thread_finds_a_drift_by_itself_and_ends_when_told(guarded):
    guard = DriftGuard(guarded.sync, 1e-6, take_out=guarded.said.append, record=guarded.record)
    corrupt(guarded.engine, "model.norm.weight")
    guard.start()
    deadline = time.monotonic() + 10
    while len(guarded.said) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    guard.stop()
    assert [said for said in guarded.said if isinstance(said, tuple)] == [(False, "audit", 1), (True, "trainer", None)]
    assert guard.failure is None
    assert "rose-drift" not in {thread.name for thread in threading.enumerate()}


def test_an_audit_is_broken_off_when_the_guard_is_stopped(guarded):
    asked = threading.Event()
    guarded.engine.deaf_to.add("audit")
    guarded.engine.before["audit"] = asked.set
    guard = DriftGuard(guarded.sync, 1e-6, take_out=guarded.said.append, record=guarded.record)
    guard.start()
    assert asked.wait(10)
    guard.stop()
    assert "rose-drift" not in {thread.name for thread in threading.enumerate()}
    assert guarded.said == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_guard_that_fails_says_why(guarded):
    guarded.sync.audit = None
    guard = DriftGuard(guarded.sync, 1e-6, take_out=guarded.said.append, record=guarded.record)
    guard.start()
    guard._thread.join(10)
    assert "TypeError" in guard.failure
    guard.stop()
