import http.client
import threading

import pytest
import torch

from rose.clock import monotonic_ns
from rose.runtime.agent.succession import recorded_run
from rose.runtime.agent.weights.sync import Target
from rose.runtime.agent.weights.weight_keeper import WeightKeeper
from rose.runtime.coserving.page import Field, Party
from rose.runtime.coserving.questions import parse_question
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import StoreServer
from tests.runtime.coserving.hand_made_engine import (
    HandMadeEngine,
    corrupt,
    published,
    random_weights,
    stepped,
    sync_of,
)

FIRST = random_weights()
#: By run, its versions 0 and 1: the same numbers, and the same weights to begin with.
VERSIONS = {name: [FIRST, stepped(FIRST, seed)] for name, seed in (("one", 1), ("two", 2))}


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    servers = {}
    for name, versions in VERSIONS.items():
        servers[name] = StoreServer(published(tmp_path_factory.mktemp(name), versions, run_id=name)).start()
    yield {name: server.url for name, server in servers.items()}
    for server in servers.values():
        server.stop()


@pytest.fixture
def engine(tmp_path):
    made = HandMadeEngine(tmp_path / "engine", FIRST, dtype=torch.bfloat16)
    made.names = []
    made.schedulers[0].record_weight_version_change = lambda new_version: made.names.append(new_version)
    return made


def swaps(engine):
    return engine.updaters[0]._page.get(Party.ROLLOUT, Field.SWAPS)


def bring(sync, urls, run_id, version, at=None):
    return sync.bring(Target(run_id, version, urls[at or run_id]))


def begun(engine, urls):
    """Return a sync after version 0 of run "one" was swapped in: the engine's checkpoint was another."""
    corrupt(engine, "model.norm.weight")
    sync = sync_of(engine)
    assert bring(sync, urls, "one", 0).ok
    sync.note_recorded()
    assert swaps(engine) == 1
    return sync


def test_a_checkpoint_that_is_the_version_is_not_fetched(engine, urls):
    sync = sync_of(engine)
    event = bring(sync, urls, "one", 0)
    assert (event.ok, event.base_version, event.wire_bytes, swaps(engine)) == (True, 0, 0, 0), event.reason
    assert sync.held == ("one", 0)
    assert bring(sync, urls, "one", 1).base_version == 0
    # Another run's version 0 is the same weights, and no longer the engine's.
    assert bring(sync, urls, "two", 0).base_version is None
    corrupted = sync_of(engine)
    corrupt(engine, "model.norm.weight")
    event = bring(corrupted, urls, "two", 0)
    assert (event.ok, event.base_version, event.wire_bytes > 0) == (True, None, True)


def test_another_runs_version_comes_by_an_anchor_although_its_number_is_the_same(engine, urls):
    sync = sync_of(engine)
    event = bring(sync, urls, "one", 1)
    assert (event.ok, event.base_version, event.rl_run_id) == (True, 0, "one"), event.reason
    event = bring(sync, urls, "two", 1)
    assert (event.ok, event.base_version, event.encoding, event.rl_run_id) == (True, None, "dense", "two")
    assert engine.holds(VERSIONS["two"][1], torch.bfloat16)
    assert (sync.run_id, sync.version) == ("two", 1)
    assert engine.names == ["one/1", "two/1"]


def test_a_package_of_another_run_than_the_targets_is_refused_and_changes_nothing(engine, urls):
    sync = sync_of(engine)
    bring(sync, urls, "one", 1)
    event = bring(sync, urls, "two", 1, at="one")
    assert not event.ok
    assert "is of run 'one', expected one of run 'two'" in event.reason
    assert (sync.run_id, sync.version, sync.standing.trusted) == ("one", 1, True)
    assert engine.holds(VERSIONS["one"][1], torch.bfloat16)
    # Nor is it a drift that the address it was sent to has another run's version of that number.
    assert sync.audit() is None
    assert sync.standing.trusted


def test_the_next_agent_finds_out_what_the_engine_holds_and_goes_on_by_deltas(engine, urls):
    begun(engine, urls)
    # The last one was killed as it brought another version in.
    engine.updaters[0].ask("prepare", 7)
    sync = sync_of(engine)
    assert sync.take_over(swaps(engine)) is None
    assert sync.held == ("one", 0)
    assert sync.standing.held
    assert sync.standing.trusted
    assert sync.audit() is None
    event = bring(sync, urls, "one", 1)
    assert (event.ok, event.base_version) == (True, 0), event.reason


class Killed(BaseException):
    """Nothing of the agent runs after it, but what tidies the staging folder."""


@pytest.mark.parametrize(("target", "swapped"), [(("one", 1), False), (("one", 1), True), (("two", 0), True)])
def test_an_agent_that_is_killed_around_the_swap_loses_no_engine(engine, urls, target, swapped):
    sync = begun(engine, urls)
    post = engine.post

    def killed(path, body):
        if parse_question(body["rid"])[0] == "commit":
            if swapped:
                post(path, body)
            raise Killed
        return post(path, body)

    engine.post = killed
    with pytest.raises(Killed):
        bring(sync, urls, *target)
    engine.post = post
    sync = sync_of(engine)
    assert sync.take_over(swaps(engine)) is None
    assert sync.held == (target if swapped else ("one", 0))
    assert sync.audit() is None
    assert recorded_run(engine.staging) == sync.run_id
    assert bring(sync, urls, "two", 1).ok


def recorded_syncs(sync):
    """Return what a keeper records of an engine that has no target."""
    events = []
    callbacks = {"coming": lambda _: None, "take_out": events.append, "record": lambda event, **_: events.append(event)}
    keeper = WeightKeeper("d0", lambda: sync, 0.0, **callbacks)
    for _ in range(2):
        keeper.look(monotonic_ns())
    return [(event.ok, event.rl_run_id, event.policy_version, event.base_version, event.wire_bytes) for event in events]


def test_a_version_that_was_swapped_in_is_recorded_once_whenever_its_agent_was_killed(engine, urls):
    found = [(True, "one", 1, 1, 0)]

    def successor():
        sync = sync_of(engine)
        assert sync.take_over(swaps(engine)) is None
        return sync

    sync = begun(engine, urls)
    assert recorded_syncs(successor()) == []
    # The agent is killed before it records the event. So is its first successor.
    assert bring(sync, urls, "one", 1).ok
    successor()
    again = successor()
    assert recorded_syncs(again) == found
    assert recorded_syncs(successor()) == []
    # A version that the engine never got is not recorded.
    engine.post, post = (lambda _, body: [False] if "commit" in body["rid"] else post(_, body)), engine.post
    assert not bring(again, urls, "one", 0).ok
    engine.post = post
    assert recorded_syncs(successor()) == []


@pytest.mark.parametrize("verb", ["prepare", "commit"])
def test_a_sync_under_way_ends_when_its_agent_leaves_the_engine(engine, urls, verb):
    sync = begun(engine, urls)
    asking, events = threading.Event(), []
    engine.before[verb] = asking.set
    engine.deaf_to.add(verb)
    syncing = threading.Thread(target=lambda: events.append(bring(sync, urls, "one", 1)))
    syncing.start()
    assert asking.wait(30)
    sync.give_up()
    engine.deaf_to.clear()
    # Whatever it asked from now on would end what the next agent asks for.
    for other in ("prepare", "commit", "audit"):
        engine.before[other] = lambda: events.append("asked")
    syncing.join(30)
    (event,) = events
    assert not event.ok
    assert "leaves the engine to another" in event.reason
    engine.before.clear()
    sync = sync_of(engine)
    assert sync.take_over(swaps(engine)) is None
    assert sync.held == ("one", 0)
    assert bring(sync, urls, "one", 1).ok


def test_what_was_fetched_when_the_agent_left_is_staged_for_the_next(engine, urls, monkeypatch):
    sync = begun(engine, urls)
    fetch = Receiver.fetch

    def and_meanwhile(*arguments):
        staged = fetch(*arguments)
        sync.give_up()
        return staged

    monkeypatch.setattr(Receiver, "fetch", and_meanwhile)
    event = bring(sync, urls, "one", 1)
    assert not event.ok
    assert event.wire_bytes > 0
    monkeypatch.undo()
    sync = sync_of(engine)
    assert sync.take_over(swaps(engine)) is None
    event = bring(sync, urls, "one", 1)
    assert (event.ok, event.wire_bytes) == (True, 0), event.reason


def drifted(engine):
    corrupt(engine, "model.norm.weight")


def no_record(engine):
    (engine.staging / "held-0.json").unlink()


def damaged_record(engine):
    (engine.staging / "held-0.json").write_text("{}")


def garbled_answer(engine):
    def cut_short():
        raise http.client.IncompleteRead(b"")

    engine.before["confirm"] = cut_short


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (garbled_answer, "did not answer when told to confirm version 0"),
        (drifted, "model.norm.weight"),
        (no_record, "not on record"),
        (damaged_record, "not possible to find out"),
    ],
)
def test_what_cannot_be_confirmed_is_not_taken_over(engine, urls, change, reason):
    begun(engine, urls)
    change(engine)
    sync = sync_of(engine)
    assert reason in sync.take_over(swaps(engine))
    assert sync.held == ("", 0)


def test_the_same_weights_by_another_runs_name_are_not_what_is_on_record(engine, urls):
    sync = begun(engine, urls)
    record = (engine.staging / "held-0.json").read_bytes()
    assert bring(sync, urls, "two", 0).ok
    # As if the agent had been killed before it noted the second.
    (engine.staging / "held-0.json").write_bytes(record)
    assert sync_of(engine).take_over(swaps(engine)) == "it holds weights two/0, but its record says one/0"
