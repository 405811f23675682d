import json
import shutil
import threading
import time
from unittest.mock import Mock

import pytest
import torch

from benchmarks.transfer.shards import ShardedStore
from rose.clock import monotonic_ns
from rose.runtime.agent.weights.sync import Target
from rose.runtime.coserving.page import Party, Span
from rose.transfer.errors import TransferError
from rose.transfer.wire.origin import RefusedError
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import StoreServer
from tests.runtime.coserving.hand_made_engine import (
    HandMadeEngine,
    corrupt,
    published,
    random_weights,
    shape,
    stepped,
    sync_of,
)

VERSIONS = [random_weights()]
for seed in (1, 2, 3):
    VERSIONS.append(stepped(VERSIONS[-1], seed))
PHASES = ("encode_ns", "fetch_ns", "verify_ns", "stage_ns", "pause_ns", "acknowledge_ns")


@pytest.fixture(scope="module")
def three_versions(tmp_path_factory):
    return published(tmp_path_factory.mktemp("published") / "store", VERSIONS[:3], tp=2).folder


@pytest.fixture
def store(three_versions, tmp_path):
    return ShardedStore(shutil.copytree(three_versions, tmp_path / "store"), tp=2, model=shape())


@pytest.fixture
def server(store):
    with StoreServer(store) as running:
        yield running


@pytest.fixture
def engine(tmp_path):
    return HandMadeEngine(tmp_path / "engine", VERSIONS[0], tp=2, dtype=torch.bfloat16)


@pytest.fixture
def sync(engine):
    return sync_of(engine)


def acknowledged(store):
    return [json.loads(path.read_text())["version"] for path in (store.folder / "acks").glob("*.json")]


def test_an_engine_goes_from_its_checkpoint_by_a_delta_and_acknowledges_what_it_was_found_to_hold(
    engine, sync, server, store
):
    event = sync.bring(Target("", 1, server.url, source="relay", route="intra-zone"))
    assert (event.ok, event.reason) == (True, None)
    assert (event.encoding, event.base_version, event.policy_version) == ("delta", 0, 1)
    assert (event.source, event.route) == ("relay", "intra-zone")
    times = {phase: getattr(event, phase) for phase in PHASES}
    assert all(time_ns > 0 for time_ns in times.values()), times
    # The publisher's time was spent before.
    assert sum(times.values()) - event.encode_ns <= event.total_ns
    assert event.wire_bytes > 0
    assert event.dense_bytes == 2 * event.total_elements
    assert 0 < event.changed_elements < 2 * event.total_elements
    assert engine.holds(VERSIONS[1], torch.bfloat16)
    (package,) = [package for package in store.packages() if package.version == 1]
    assert event.sha256 == store.manifest(package).weights_sha256
    assert acknowledged(store) == [0]
    assert sync.acknowledge() is None
    assert acknowledged(store) == [1]
    assert sync.version == 1
    assert sync.standing.held
    assert not list(engine.staging.glob("*-from-*"))


def test_what_a_sync_left_that_ended_with_its_agent_is_used_by_the_next_or_removed(engine, sync, server):
    receiver = Receiver(server.url, None, engine.staging)
    left, wanted = receiver.fetch(1, 0), receiver.fetch(2, 0)
    (engine.staging / "v1").symlink_to(left.folder.name)
    for rank in range(2):
        (engine.staging / f"1.prepare.{rank}.json").write_text("{}")
    staged = []
    engine.before["prepare"] = lambda: staged.extend(path for path in engine.staging.iterdir() if path.is_dir())
    event = sync.bring(Target("", 2, server.url))
    assert (event.ok, event.base_version, event.wire_bytes) == (True, 0, 0), event.reason
    assert sorted(set(staged)) == [wanted.folder, engine.staging / "partial", engine.staging / "v2"]
    sync.note_recorded()
    assert sorted(path.name for path in engine.staging.iterdir()) == ["held-2.json", "partial"]


def test_an_engine_that_is_not_at_its_checkpoint_is_offered_no_delta(engine, sync, server):
    corrupt(engine, "model.layers.0.mlp.gate_up_proj.weight")
    event = sync.bring(Target("", 1, server.url))
    assert event.ok, event.reason
    assert (event.base_version, event.encoding) == (None, "dense")
    assert engine.holds(VERSIONS[1], torch.bfloat16)


def test_weights_that_changed_since_the_last_sync_are_brought_back_from_an_anchor(engine, sync, server):
    sync.bring(Target("", 1, server.url))
    corrupt(engine, "model.norm.weight")
    event = sync.bring(Target("", 2, server.url))
    assert event.ok, event.reason
    assert event.base_version is None
    # The delta that was refused had to be fetched as well.
    assert event.wire_bytes > event.dense_bytes
    assert engine.holds(VERSIONS[2], torch.bfloat16)


def test_a_version_that_is_not_found_in_the_engine_is_not_acknowledged_and_the_engine_not_trusted(
    engine, sync, server, store
):
    for rank in range(len(engine.ranks)):
        engine.updaters[rank]._commit = lambda ready: {"pause_ns": 1, "after_step": 7}  # It forgets to.
    event = sync.bring(Target("", 1, server.url))
    assert not event.ok
    assert "expected" in event.reason
    assert acknowledged(store) == [0]
    assert (sync.version, sync.standing.trusted, sync.standing.failures) == (0, False, 1)


def test_ranks_that_swapped_in_at_different_steps_are_not_trusted(tmp_path, server):
    engine = HandMadeEngine(tmp_path / "engine", VERSIONS[0], tp=2)
    engine.schedulers[1].forward_ct += 1
    sync = sync_of(engine)
    event = sync.bring(Target("", 1, server.url))
    assert not event.ok
    assert "(7, " in event.reason
    assert not sync.standing.trusted


def other_run(folder):
    return published(folder / "other", [VERSIONS[0], VERSIONS[3]], tp=2)


@pytest.fixture
def handed_over(tmp_path, server):
    other = other_run(tmp_path)
    servers = []

    def hand_over():
        port = int(server.url.rpartition(":")[2])
        server.stop()
        servers.append(StoreServer(other, port=port).start())

    yield hand_over
    for running in servers:
        running.stop()


def test_a_refused_acknowledgement_is_a_drift_and_the_engine_is_brought_back(engine, sync, server, handed_over):
    engine.before["commit"] = handed_over
    assert sync.bring(Target("", 1, server.url)).ok
    event = sync.acknowledge()
    assert (event.ok, event.source) == (False, "audit")
    assert "has drifted" in event.reason
    assert event.policy_version == 1
    # Not an attempt to bring it back that failed: that is due at once.
    assert (sync.standing.trusted, sync.standing.failures) == (False, 0)
    back = sync.bring_back()
    assert (back.ok, back.reason, back.base_version, back.policy_version) == (True, None, None, 1)
    assert engine.holds(VERSIONS[3], torch.bfloat16)
    assert sync.acknowledge() is None
    assert (sync.standing.trusted, sync.standing.failures) == (True, 0)


def test_the_more_often_an_origin_refuses_what_it_serves_the_longer_the_next_attempt_waits(sync, server, monkeypatch):
    def refuse(*_):
        raise RefusedError("it has drifted")

    assert sync.bring(Target("", 1, server.url)).ok
    monkeypatch.setattr(Receiver, "acknowledge", refuse)
    for failures in range(3):
        assert "drifted" in sync.acknowledge().reason
        assert (sync.standing.trusted, sync.standing.failures) == (False, failures)
        assert sync.bring_back().ok


def test_a_sync_says_that_the_origin_was_not_told_of_its_base(sync, server, monkeypatch):
    assert sync.bring(Target("", 1, server.url)).reason is None
    with monkeypatch.context() as patch:
        patch.setattr(Receiver, "acknowledge", Mock(side_effect=TransferError("HTTP 401")))
        assert sync.acknowledge() is None
        event = sync.bring(Target("", 2, server.url))
    assert (event.ok, event.encoding) == (True, "dense")
    assert event.reason == "all weights were fetched: the origin was not told of version 1: HTTP 401"
    assert sync.acknowledge() is None
    assert sync.origin_knows


@pytest.mark.parametrize("refused", [False, True])
def test_what_the_origin_could_not_be_told_is_told_before_the_next_sync(tmp_path, store, refused):
    engine = HandMadeEngine(tmp_path / "engine", VERSIONS[0])
    sync = sync_of(engine)
    first = StoreServer(store).start()
    engine.before["commit"] = first.stop
    assert sync.bring(Target("", 1, first.url)).ok
    assert sync.acknowledge() is None
    with StoreServer(other_run(tmp_path) if refused else store) as server:
        event = sync.bring(Target("", 2, server.url))
        assert sync.acknowledge() is None
    if refused:
        assert "has drifted" in event.reason
        assert not sync.standing.trusted
    else:
        assert (event.ok, event.reason, event.base_version) == (True, None, 1)
        assert acknowledged(store) == [2]


def test_a_drift_is_found_told_and_undone(engine, sync, server):
    sync.bring(Target("", 2, server.url, source="relay"))
    corrupt(engine, "model.layers.1.self_attn.o_proj.weight")
    event = sync.audit()
    assert (event.ok, event.source, event.policy_version, event.wire_bytes) == (False, "audit", 2, 0)
    assert event.reason.startswith("drift: ")
    assert "o_proj" in event.reason
    assert not sync.standing.trusted
    assert sync.audit() is None  # Known already.
    back = sync.bring_back()
    assert (back.ok, back.base_version, back.policy_version, back.source) == (True, None, 2, "relay")
    assert engine.holds(VERSIONS[2], torch.bfloat16)
    assert sync.standing.trusted
    assert sync.bring_back() is None


def test_a_version_that_was_published_anew_with_other_weights_is_a_drift(engine, sync, server, handed_over):
    sync.bring(Target("", 1, server.url))
    handed_over()
    event = sync.audit()
    assert (event.ok, event.source) == (False, "audit")
    assert event.reason.startswith("drift: ")
    assert "has drifted" in event.reason
    assert not sync.standing.trusted
    assert sync.bring_back().ok
    assert engine.holds(VERSIONS[3], torch.bfloat16)


def test_an_engine_that_may_not_step_is_brought_to_a_version_audited_and_brought_back(engine, sync, server):
    page = engine.updaters[0]._page
    page.open_span(Party.ROLLOUT, Span.HELD, 5)
    assert page.lease().expires_ns == 0
    end = engine.wait_as_gated()
    try:
        event = sync.bring(Target("", 1, server.url))
        assert (event.ok, event.reason, event.base_version) == (True, None, 0)
        assert sync.audit() is None
        corrupt(engine, "model.norm.weight")
        assert sync.audit() is not None
        assert sync.bring_back().ok
    finally:
        end()
    assert engine.holds(VERSIONS[1], torch.bfloat16)
    spans, _, _ = page.drain(Party.ROLLOUT, 0)
    assert [span.kind for span in spans] == [Span.HELD, Span.SYNC] * 2
    assert spans[1].aux == sync.version == 1
    assert event.pause_ns >= spans[1].end_ns - spans[1].start_ns > 0, "the longest of two ranks"
    assert page.open(Party.ROLLOUT, monotonic_ns()).kind is Span.HELD


def test_a_sync_of_an_engine_without_a_lease_goes_on_between_the_steps_of_serving(tmp_path, server):
    stepping = threading.Event()
    stepping.set()
    waited = []

    def between_steps():
        while stepping.is_set():
            waited.append(None)
            time.sleep(0.001)

    engine = HandMadeEngine(tmp_path / "engine", VERSIONS[0], dtype=torch.bfloat16, wait_for_device=between_steps)
    sync = sync_of(engine)
    end = engine.wait_as_gated()
    events = []
    syncing = threading.Thread(target=lambda: events.append(sync.bring(Target("", 1, server.url))))
    syncing.start()
    try:
        while not waited:
            time.sleep(0.001)
        assert syncing.is_alive()
        stepping.clear()
        syncing.join(30)
    finally:
        stepping.clear()
        syncing.join(30)
        end()
    assert events[0].ok, events[0].reason
    assert engine.holds(VERSIONS[1], torch.bfloat16)


def test_an_engine_that_died_is_not_waited_for(engine, sync, server):
    engine.deaf_to.add("prepare")
    engine.before["prepare"] = lambda: setattr(engine, "alive", False)
    event = sync.bring(Target("", 1, server.url))
    assert not event.ok
    assert "died before it could load version 1" in event.reason
