import asyncio
import threading
import time
from types import SimpleNamespace

import aiohttp
import pytest
import torch

from benchmarks.transfer.shards import ShardedStore
from rose.clock import monotonic_ns
from rose.events import Sync
from rose.runtime.agent.weights import weight_keeper
from rose.runtime.agent.weights.sync import Target
from rose.runtime.agent.weights.weight_keeper import WeightKeeper
from rose.runtime.engines.ports import free_port
from rose.runtime.policy.drift import RETRY_NS, Standing
from rose.runtime.scheduling.gateway import Gateway
from rose.transfer.wire.server import StoreServer
from tests.runtime.agent.agent_of_engine import agent_of
from tests.runtime.agent.agents_in_turn import until
from tests.runtime.coserving.hand_made_engine import (
    HandMadeEngine,
    corrupt,
    published,
    random_weights,
    shape,
    stepped,
    sync_of,
)
from tests.runtime.scheduling.stand_ins import reported


def target(version, run_id="a"):
    return Target(run_id, version, "http://127.0.0.1:1")


class Engine:
    """Takes a target unless a test says why not; `gate` holds it up meanwhile."""

    standing = Standing(held=False, trusted=True, looked_ns=0)
    missing_sync = None

    def __init__(self):
        self.held, self.asked, self.refused, self.located = ("", 0), [], {}, []
        self.gate = threading.Event()
        self.gate.set()

    def bring(self, wanted):
        self.asked.append((wanted.run_id, wanted.version))
        self.gate.wait(10)
        reason = self.refused.get(wanted.version)
        if reason is None:
            self.held = (wanted.run_id, wanted.version)
        return SimpleNamespace(ok=reason is None, reason=reason, source="trainer", base_version=None)

    def locate(self, target):
        self.located.append(target)

    def note_recorded(self):
        pass

    def acknowledge(self):
        return None


class Kept:
    """A keeper of `engine`, None while there is none; `said` is what it told, in order."""

    def __init__(self, engine, audit_s=0.0):
        self.engine, self.said = engine, []
        told = {"coming": lambda run_id: None, "take_out": self.said.append, "record": self.record}
        self.keeper = WeightKeeper("d0", lambda: self.engine, audit_s, **told)

    def record(self, event, *, durable=None):
        self.said.append((event.ok, event.source, event.base_version))

    def look(self, later_ns=0):
        return self.keeper.look(monotonic_ns() + later_ns)


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(weight_keeper, "BACK_OFF_FIRST_S", 0.02)
    made = Kept(Engine())
    made.keeper.start()
    yield made
    if made.engine is not None:
        made.engine.gate.set()
    made.keeper.stop()


def test_an_engine_is_brought_to_its_target_once_and_the_newest_wins(kept):
    engine, aim = kept.engine, kept.keeper.aim
    aim(target(3))
    until(lambda: engine.held == ("a", 3))
    aim(target(3))
    aim(None)
    engine.gate.clear()
    aim(target(3, "b"))
    until(lambda: len(engine.asked) == 2)
    for version in (4, 5, 6):
        aim(target(version, "b"))
    engine.gate.set()
    until(lambda: engine.held == ("b", 6))
    assert engine.asked == [("a", 3), ("b", 3), ("b", 6)]
    assert kept.keeper.failed is None


def test_a_target_that_was_missed_is_tried_again_and_keeps_no_other_waiting(kept, monkeypatch):
    engine, keeper = kept.engine, kept.keeper
    engine.refused[1] = "no room"
    keeper.aim(target(1))
    until(lambda: len(engine.asked) >= 3)
    assert keeper.failed == "version 1 of run 'a': no room"
    monkeypatch.setattr(weight_keeper, "BACK_OFF_FIRST_S", 30.0)
    engine.refused[2] = "no room"
    keeper.aim(target(2))
    until(lambda: keeper.failed == "version 2 of run 'a': no room")
    keeper.aim(target(3))
    until(lambda: engine.held == ("a", 3))
    until(lambda: keeper.failed is None)


def test_an_engine_that_comes_or_is_started_again_is_brought_to_the_target(kept):
    first, kept.engine = kept.engine, None
    kept.keeper.aim(target(1))
    time.sleep(0.05)
    assert (first.asked, kept.keeper.failed) == ([], None)
    kept.engine = first
    until(lambda: first.held == ("a", 1) and first.located)
    kept.engine = second = Engine()
    until(lambda: second.held == ("a", 1))


def test_the_engine_is_told_where_its_target_is_fetched_and_told_again_when_that_moves(kept):
    kept.engine.held = ("a", 1)
    places = [target(1), Target("a", 1, "http://127.0.0.1:2"), Target("a", 1, "http://127.0.0.1:2", "token")]
    for count, place in enumerate(places, 1):
        kept.keeper.aim(place)
        until(lambda expected=count: len(kept.engine.located) == expected)
    assert kept.engine.located == places
    assert kept.engine.asked == []


V0 = random_weights()
V1 = stepped(V0, 1)
AUDIT_S = 100.0
LATER_NS = int(2 * AUDIT_S * 1e9)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with StoreServer(published(tmp_path_factory.mktemp("store"), [V0, V1], tp=2)) as running:
        yield running


@pytest.fixture
def made(tmp_path):
    return HandMadeEngine(tmp_path / "engine", V0, dtype=torch.bfloat16)


@pytest.fixture
def guarded(server, made):
    sync = sync_of(made)
    assert sync.bring(Target("", 1, server.url)).ok
    assert sync.acknowledge() is None
    return Kept(sync, AUDIT_S)


def test_a_drifted_engine_is_found_when_an_audit_is_due_taken_out_and_brought_back(guarded, made):
    guarded.look(LATER_NS)
    assert guarded.said == [], "it holds its weights"
    corrupt(made, "model.norm.weight")
    guarded.look()
    assert guarded.said == [], "no audit is due"
    guarded.look(LATER_NS)
    assert not guarded.engine.standing.trusted
    guarded.look()
    assert guarded.engine.standing.trusted
    assert made.holds(V1, torch.bfloat16)
    out, drift, back = guarded.said
    assert out.startswith("drift: ")
    assert drift == (False, "audit", 1)
    assert back == (True, "trainer", None)


def test_an_engine_whose_acknowledgement_is_refused_is_taken_out_once_and_brought_back(guarded, made, tmp_path):
    def store(name, weights):
        published = ShardedStore(tmp_path / name, tp=2, model=shape())
        published.publish(2, weights)
        return published

    expected = stepped(V1, 3)
    other, true = store("other", stepped(V1, 2)), store("true", expected)
    servers = [StoreServer(other).start()]
    url = servers[0].url

    def hand_over():
        servers.pop().stop()
        servers.append(StoreServer(true, port=int(url.rpartition(":")[2])).start())

    made.before["commit"] = hand_over
    guarded.keeper.aim(Target("", 2, url))
    for _ in range(3):
        guarded.look()
    servers.pop().stop()
    reached, out, drift, back = guarded.said
    assert reached == (True, "trainer", None), "turns may have used it"
    assert "has drifted" in out
    assert drift == (False, "audit", 2)
    assert back == (True, "trainer", None)
    assert made.holds(expected, torch.bfloat16)


def test_the_gateway_places_nothing_on_an_engine_until_it_is_trusted_again(guarded, made, tmp_path):
    port = free_port()
    agent = agent_of(made, tmp_path, guarded.record, gateway_url=f"http://127.0.0.1:{port}", drift_audit_s=AUDIT_S)
    agent._engine.engine, agent._engine.sync, agent._engine._away = made, guarded.engine, None
    corrupt(made, "model.norm.weight")

    async def watch():
        gateway = Gateway("127.0.0.1", port, agent_token="agent-token-of-tests")
        await gateway.start()
        alive = []
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for act in (
                agent._control.beat,
                lambda: agent._weights.look(monotonic_ns() + LATER_NS),
                agent._control.beat,
                lambda: agent._weights.look(monotonic_ns()),
                agent._control.beat,
            ):
                await asyncio.to_thread(act)
                (worker,) = await reported(session)
                alive.append(worker["alive"])
        await gateway.stop()
        return alive

    assert asyncio.run(watch()) == [True, False, False, False, True]


def test_a_version_is_recorded_although_its_origin_never_hears_of_it(guarded, made, server, tmp_path, monkeypatch):
    swapped_in, ended, events = threading.Event(), threading.Event(), []
    monkeypatch.setattr(guarded.engine, "_tell", lambda *_: swapped_in.set() or ended.wait(60))
    monkeypatch.setattr(weight_keeper, "_LAST_S", 0.1)
    agent = agent_of(made, tmp_path, lambda event, **_: events.append(event))
    agent._engine.sync = guarded.engine
    agent._weights.aim(Target("", 0, server.url))
    agent._weights.start()
    assert swapped_in.wait(10)
    agent.stop()
    ended.set()
    assert [event.ok for event in events if isinstance(event, Sync)] == [True]


def test_one_that_cannot_be_brought_back_stays_out_and_is_tried_again(guarded, made):
    corrupt(made, "model.norm.weight")
    guarded.look(LATER_NS)
    post, made.post = made.post, lambda *_: [False]
    guarded.look()
    assert guarded.said[-1] == (False, "trainer", None)
    guarded.look()
    assert len(guarded.said) == 3
    made.post = post
    guarded.look(RETRY_NS)
    assert guarded.said[-1] == (True, "trainer", None)
    assert guarded.engine.standing.trusted


def test_an_audit_gives_way_to_a_target_and_to_the_end(guarded, made, server):
    asked = threading.Event()
    made.deaf_to.add("audit")
    made.before["audit"] = asked.set
    guarded = Kept(guarded.engine, 1e-6)
    keeper = guarded.keeper
    keeper.start()
    assert asked.wait(10)
    keeper.aim(Target("", 0, server.url))
    until(lambda: guarded.said and guarded.said[0][:2] == (True, "trainer"))
    keeper.stop()
    keeper._thread.join(10)
    assert not keeper._thread.is_alive()
    assert keeper.failure is None
