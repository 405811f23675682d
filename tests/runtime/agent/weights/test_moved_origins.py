import json

import pytest
import torch

from rose.events import Sync
from rose.runtime.agent.weights import relays
from rose.runtime.agent.weights.relays import Relays
from rose.runtime.agent.weights.sync import Target, from_anywhere
from rose.runtime.coserving.page import Field, Party
from rose.transfer.wire.origin_rules import ANYWHERE
from rose.transfer.wire.server import StoreServer
from tests.runtime.agent.agent_of_engine import agent_of, straight
from tests.runtime.agent.agents_in_turn import until
from tests.runtime.coserving.hand_made_engine import (
    HandMadeEngine,
    corrupt,
    published,
    random_weights,
    stepped,
    sync_of,
)

FIRST = random_weights()
SECOND = stepped(FIRST, 1)


class TakenUp:
    def __init__(self, engine, folder, via):
        self.engine, self.syncs = engine, []
        # Audits are asked for below.
        self.agent = agent_of(engine, folder, self.record, via=via, drift_audit_s=0)
        self.agent._page.set(Party.ROLLOUT, Field.SWAPS, engine.updaters[0].swaps)
        assert self.agent._engine._take_over(engine) is None
        self.agent._weights.start()

    def record(self, event, *, durable=None):
        if isinstance(event, Sync):
            self.syncs.append(event)

    @property
    def sync(self):
        return self.agent._engine.sync

    def aim(self, url):
        self.agent._weights.aim(Target("a", 1, url, rules=ANYWHERE))

    def bring(self, url):
        self.aim(url)
        # Once the origin knows, the agent's own thread changes nothing until a drift is found.
        until(lambda: self.syncs and self.sync.origin_knows)
        assert self.sync.held == ("a", 1)

    def drift(self):
        corrupt(self.engine, "model.norm.weight")
        # Any may give way to what the agent's threads do.
        until(lambda: self.sync.audit() is not None)

    def wait_until_back(self):
        until(lambda: self.syncs and self.syncs[-1].ok and self.syncs[-1].base_version is None)
        assert self.sync.standing.trusted
        assert self.engine.holds(SECOND, torch.bfloat16)

    def close(self):
        self.agent._weights.stop()
        self.agent._weights._thread.join()
        self.agent._page.close()


@pytest.fixture
def store(tmp_path):
    return published(tmp_path / "store", [FIRST, SECOND], run_id="a")


@pytest.fixture
def server(store):
    with StoreServer(store) as running:
        yield running


@pytest.fixture
def engine(tmp_path):
    return HandMadeEngine(tmp_path / "engine", FIRST, dtype=torch.bfloat16)


@pytest.fixture
def take_up(engine, tmp_path):
    made = []

    def by_an_agent(via=straight):
        made.append(TakenUp(engine, tmp_path, via))
        return made[0]

    yield by_an_agent
    for taken in made:
        taken.close()


@pytest.fixture
def held(engine, server):
    sync = sync_of(engine)
    assert sync.bring(Target("a", 1, server.url)).ok
    sync.note_recorded()


@pytest.mark.usefixtures("held")
def test_an_engine_that_drifted_under_the_next_agent_is_brought_back_from_where_its_run_publishes(take_up, server):
    taken = take_up()
    assert taken.sync.held == ("a", 1)
    taken.drift()
    assert taken.sync.bring_back() is None, "nobody said yet where that is"
    taken.aim(server.url)
    taken.wait_until_back()
    assert [(sync.ok, sync.base_version, sync.policy_version) for sync in taken.syncs] == [(True, None, 1)]


@pytest.mark.usefixtures("held")
def test_the_audits_of_the_next_agent_keep_what_leads_on_from_what_its_engine_holds(take_up, server, store):
    taken = take_up()
    acks = store.folder / "acks"
    for path in acks.iterdir():
        path.unlink()
    assert taken.sync.audit() is None
    assert not list(acks.iterdir())
    taken.aim(server.url)

    def told():
        assert taken.sync.audit() is None
        return [json.loads(path.read_text())["version"] for path in acks.glob("*.json")] == [1]

    until(told)
    assert taken.sync.standing.trusted
    assert taken.syncs == []


@pytest.fixture
def one_relay(tmp_path, monkeypatch, elsewhere):
    monkeypatch.setattr(relays, "RELAYS_MAX", 1)
    made = Relays(tmp_path / "relays", 1 << 24, lambda _url: "intra-zone", ANYWHERE)
    yield made
    made.stop()


def test_an_engine_is_brought_back_by_another_relay_where_the_one_it_came_by_has_ended(one_relay, take_up, server):
    taken = take_up(one_relay.via)
    taken.bring(server.url)
    one_relay.via(Target("b", 0, "http://192.0.2.1:1"))
    taken.drift()
    taken.wait_until_back()
    came, back = taken.syncs
    assert (came.base_version, came.source) == (0, "relay")
    assert (back.source, back.route) == ("relay", "intra-zone")


def test_where_there_is_no_way_from_this_host_the_reason_is_told_and_another_attempt_is_due_later(engine, server):
    full = [True]

    def via(target):
        if full[0]:
            raise OSError("no room")
        return from_anywhere(target)

    sync = sync_of(engine, via=via)
    target = Target("a", 1, server.url)
    event = sync.bring(target)
    assert (event.ok, event.reason, event.wire_bytes) == (False, "OSError: no room", 0)
    assert (sync.standing.trusted, sync.standing.failures) == (True, 0)
    full[0] = False
    assert sync.bring(target).ok
    corrupt(engine, "model.norm.weight")
    full[0] = True
    assert sync.audit() is not None
    assert sync.bring_back().reason == "OSError: no room"
    assert (sync.standing.trusted, sync.standing.failures) == (False, 1)
    full[0] = False
    assert sync.bring_back().ok
    assert engine.holds(SECOND, torch.bfloat16)
