import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from rose.clock import Anchor, monotonic_ns
from rose.events import Device
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent.rollout_engine import RolloutEngine
from rose.runtime.agent.succession import Predecessor, predecessor
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import EngineRecord
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.models.policy_model import Policy
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.server import StoreServer
from tests.runtime.agent.agent_of_engine import with_other
from tests.runtime.agent.agents_in_turn import SECOND, SLICE_NS, Host, idle_slice, lease_event, until
from tests.runtime.conftest import engine_spec
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.coserving.stand_in_engine import LastingEngine, stand_in_spec


@pytest.fixture
def host(tmp_path, gateway):
    made = Host(tmp_path, gateway)
    yield made
    made.close()


def test_the_next_agent_takes_up_the_engine_ends_the_lease_and_accounts_for_all_of_the_time(host, gateway, monkeypatch):
    monkeypatch.setattr("rose.runtime.agent.agent.SLICE_NS", SLICE_NS)
    record = host.first_agent()
    gateway.want(r0=60 * SECOND)
    until(lambda: host.lent)
    page = ArbiterPage(host.spec.page)
    # A slice is in the ledger, and a second that is in none yet.
    until(lambda: host.rows("SELECT count(*) FROM device_slice WHERE lease_id IS NOT NULL")[0][0] >= 1, every_s=0.1)
    engine = LastingEngine(replace(host.spec.rollout, port=record.port))
    turns = []
    turn = threading.Thread(
        target=lambda: turns.append(
            engine.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 50}})
        )
    )
    turn.start()
    time.sleep(0.2)
    host.kill_agent()
    assert page.lease().number == 1, "what it said stays on the page"
    assert not page.alive(Party.AGENT)
    time.sleep(0.2)
    host.next_agent()
    assert not page.replaced()
    assert host.agent._engine.engine.pid == record.pid
    assert host.agent._engine.engine.spec.port == record.port
    until(lambda: page.lease().number == 2)
    turn.join()
    assert len(turns[0]["output_ids"]) == 50, "the turn went on all the while"
    host.agent.stop()
    host.writer.close()
    assert record.process() is None
    assert EngineRecord.read(host.spec.page) is None
    ((joined_ns, left_ns),) = host.rows("SELECT joined_ns, left_ns FROM tenure")
    slices = host.rows("SELECT t0_ns, t1_ns FROM device_slice ORDER BY t0_ns")
    assert (slices[0][0], slices[-1][1]) == (joined_ns, left_ns)
    assert [t1_ns for _, t1_ns in slices[:-1]] == [t0_ns for t0_ns, _ in slices[1:]], "no gap and no overlap"
    # It worked without a pause, also while it had no agent and before its first slice was written.
    ((worked, least),) = host.rows(
        "SELECT sum(rollout_ns) / sum(ns), min(rollout_ns / ns) FROM device_slice "
        "WHERE activation_ns = 0 AND ns > 100_000_000"
    )
    # On a busy host it may wait in between; a slice of nothing else would be a pause.
    assert worked > 0.5
    assert least > 0
    leases = host.rows("SELECT lease_id, closed_by, close_reason FROM lease ORDER BY granted_at")
    assert leases[0] == ("fleet-d0-1", "expired", "its agent ended while it was in force")
    assert leases[1][0] == "fleet-d0-2"
    # What was lent is of the lease until it was ended, also where nobody had accounted for it yet.
    ((held_ns, lease_ns),) = host.rows(
        "SELECT (SELECT sum(ns) FROM device_slice WHERE lease_id = 'fleet-d0-1'), "
        "(SELECT duration_ns FROM lease WHERE lease_id = 'fleet-d0-1')"
    )
    assert abs(held_ns - lease_ns) < SECOND // 5
    actions = host.rows("SELECT action FROM engine WHERE role = 'rollout' ORDER BY event_time, seq")
    assert actions == [("started",), ("stopped",)]


def test_an_expired_lease_closes_at_its_expiry_whenever_the_next_agent_comes(host, gateway):
    host.first_agent()
    gateway.want(r0=60 * SECOND)
    until(lambda: host.lent)
    host.kill_agent()
    ttl_ns = int(host.spec.coserving.lease_ttl_s * SECOND)
    ended_ns = monotonic_ns()
    until(lambda: monotonic_ns() > ended_ns + 2 * ttl_ns)
    gateway.want()
    host.next_agent()
    host.agent.stop()
    host.writer.close()
    ((closed_by, closed_us, expires_us),) = host.rows(
        "SELECT closed_by, epoch_us(closed_at), epoch_us(expires_at) FROM lease WHERE lease_id = 'fleet-d0-1'"
    )
    assert (closed_by, closed_us) == ("expired", expires_us)
    ((leased_until_ns, until_ns),) = host.rows(
        "SELECT max(t1_ns) FILTER (lease_id IS NOT NULL), max(t1_ns) FROM device_slice"
    )
    assert leased_until_ns // 1000 == expires_us
    assert until_ns > leased_until_ns + ttl_ns // 2, "the time after it is nobody's lease"


def test_an_engine_that_was_left_is_left_again_replaced_or_told_of(host, monkeypatch):
    first, reasons = host.agent_that_leaves(), []
    take_over = RolloutEngine._take_over

    def as_it_leaves(engine, process):
        engine._page.set(Party.ROLLOUT, Field.SWAPS, 1)
        until(lambda: engine._leaving)
        reasons.append(take_over(engine, process))
        return reasons[0]

    with monkeypatch.context() as patch:
        patch.setattr(RolloutEngine, "_take_over", as_it_leaves)
        host.next_agent(wait=False)
        until(lambda: host.agent._engine.engine is not None)
        assert host.leave() == first
    why = "its agent leaves the engine to another agent"
    assert reasons == [f"it is not possible to find out which weights it holds: {why}"]
    assert first.process() is not None
    # An engine of other arguments than its own is ended.
    host.next_agent(rollout=replace(host.spec.rollout, max_total_tokens=200))
    assert first.process() is None
    second = host.leave()
    assert second.pid != first.pid
    os.kill(second.pid, signal.SIGKILL)
    until(lambda: second.process() is None)
    host.next_agent()
    assert host.agent._engine.engine.pid != second.pid
    host.writer.flush()
    lives = host.rows("SELECT action, pid, reason FROM engine WHERE role = 'rollout' ORDER BY event_time, seq")
    assert [life[0] for life in lives] == ["started", "died", "started", "died", "started"]
    assert lives[1][1:] == (first.pid, "engine arguments changed since it started")
    assert lives[3][1:] == (second.pid, "it ended while it had no agent")


def test_the_next_agent_takes_up_an_engine_of_any_of_its_models(host, gateway):
    host.spec = with_other(host.spec, "other")
    gateway.models = {"r0": "other"}
    host.next_agent()
    gateway.wait(lambda: gateway.heard[-1].engines[0].model == "other")
    record, gateway.models = host.leave(), {}
    host.next_agent()
    assert host.agent._engine.engine.pid == record.pid
    assert (host.agent._engine.model, host.agent._page.memory().rollout_bytes_per_token) == ("other", 4)


def test_what_a_trainer_does_while_its_device_has_no_agent_is_its_runs(host, gateway, monkeypatch):
    monkeypatch.setattr("rose.runtime.agent.agent.SLICE_NS", SECOND // 10)
    gateway.train_run_id = "trains"
    trained = "SELECT DISTINCT train_run_id FROM device_slice WHERE train_ns > 0"
    host.next_agent(rollout=None)
    gateway.wait_until_heeded()
    with OtherParty(host.spec.page, Party.TRAINER) as trainer:
        trainer.do(f"page.open_span(me, Span.TRAIN, {monotonic_ns()})")
        until(lambda: host.rows(trained) == [("trains",)])
        host.agent.stop(leave=True)
        host.writer.close()
        until_ns = host.rows("SELECT max(t1_ns) FROM device_slice")[0][0]
        host.next_agent(rollout=None)
        gateway.wait_until_heeded()
        host.agent.stop()
        host.writer.close()
    assert host.rows(f"SELECT sum(train_ns) > 0 FROM device_slice WHERE t0_ns >= {until_ns}") == [(True,)]
    assert host.rows(trained) == [("trains",)]


@pytest.mark.parametrize("given_up", ["no agent was on", "its record is gone"])
def test_an_engine_ends_by_itself_without_an_agent_or_its_record(tmp_path, given_up):
    page = ArbiterPage.create(tmp_path / "page")
    engine = LastingEngine(replace(stand_in_spec(tmp_path), orphan_s=0.3))
    try:
        engine.launch()
        until(lambda: EngineRecord.read(page.path) is not None)
        page.close() if given_up == "no agent was on" else adoption.record_path(page.path).unlink()
        until(lambda: not engine.alive)
        assert given_up in engine.spec.log.read_text()
    finally:
        engine.kill()
        page.close()


@pytest.mark.live
def test_a_real_engine_goes_on_with_its_weights_and_with_another_runs_from_an_anchor(
    tmp_path, gateway, tiny_policy, fork_server
):
    page = tmp_path / "page"
    engine = engine_spec(
        tmp_path,
        model=str(tiny_policy),
        max_total_tokens=2048,
        token_ids_only=True,
        fork_server=fork_server.path,
        extra_args=["--enable-cache-report"],
    )
    host = Host(tmp_path, gateway, engine=engine, make=EngineProcess, policy="share_all", lease_ttl_s=3.0)
    weights = Policy.load(tiny_policy).weights()
    stores = {name: VersionStore(tmp_path / name, run_id=name) for name in ("one", "two")}
    for name, store in stores.items():
        for version in (0, 1):
            change = (version + 1) * (1.0 if name == "one" else 1.5)
            store.publish(version, {key: tensor * change for key, tensor in weights.items()})
    turn = {"input_ids": list(range(1, 100)), "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}

    def reported():
        return gateway.heard[-1].engines[0].run_id, gateway.heard[-1].engines[0].policy_version

    def made(engine):
        answer = engine.post("/generate", turn)["meta_info"]
        return answer["weight_versions"][-1]["version"], answer["cached_tokens"] > 0

    try:
        with StoreServer(stores["one"]) as one, StoreServer(stores["two"]) as two:
            gateway.aim(r0=("one", 1, one.url))
            record = host.first_agent()
            gateway.wait(lambda: reported() == ("one", 1))
            gateway.want(r0=60 * SECOND)
            until(lambda: host.lent)
            process = EngineProcess(replace(engine, port=record.port))
            assert made(process) == ("one/1", False)
            assert made(process) == ("one/1", True)
            gateway.aim()
            host.kill_agent()
            host.next_agent()
            assert host.agent._engine.engine.pid == record.pid
            assert host.agent._engine.held == ("one", 1), "found by a hash of what it holds"
            assert host.agent._engine.fault is None
            until(lambda: ArbiterPage(page).lease().number == 2)
            # The end of the lease took the cache with it.
            assert [made(process) for _ in range(2)] == [("one/1", False), ("one/1", True)]
            gateway.aim(r0=("two", 1, two.url))
            gateway.wait(lambda: reported() == ("two", 1))
            assert made(process) == ("two/1", False), "the same prompt under another run's weights"
            assert host.agent._engine.engine.pid == record.pid
            host.agent.stop()
            host.writer.close()
    finally:
        host.close()
    syncs = host.rows("SELECT rl_run_id, policy_version, base_version, ok FROM sync ORDER BY event_time")
    assert syncs[0][:2] == ("one", 1)
    assert syncs[1:] == [("two", 1, None, True)]
    slices = host.rows("SELECT t0_ns, t1_ns FROM device_slice ORDER BY t0_ns")
    assert [t1_ns for _, t1_ns in slices[:-1]] == [t0_ns for t0_ns, _ in slices[1:]]
    runs = [run_id for (run_id,) in host.rows("SELECT rollout_run_id FROM device_slice ORDER BY t0_ns")]
    # It may be one's before its first slice is over.
    assert list(dict.fromkeys(runs))[-2:] == ["one", "two"]
    assert runs == sorted(runs, key=["fleet", "one", "two"].index)


def test_how_far_a_device_is_accounted_for_and_the_leases_since_then_are_what_the_ledger_has(tmp_path):
    anchor, now_ns = Anchor.take(), monotonic_ns()
    milliseconds = 1_000_000

    def device(action, at_ns):
        return Device(device_id="d0", action=action, t_ns=anchor.utc_ns(at_ns), pool="serving", device_class="cpu-core")

    def lease(name, action, after_ms):
        return lease_event(name, action, anchor.utc_us(now_ns + after_ms * milliseconds))

    def found():
        writer.flush()
        return predecessor(tmp_path / "ledger", "fleet", "d0", anchor)

    with LedgerWriter.open(tmp_path / "ledger", "agent", "fleet") as writer:
        assert found() is None
        writer.record(device("joined", now_ns))
        assert found() == Predecessor(now_ns)
        for begins, ends, run_id in ((0, 4, "trained"), (4, 10, None)):
            t0_ns, t1_ns = (anchor.utc_ns(now_ns + after_ms * milliseconds) for after_ms in (begins, ends))
            writer.record(idle_slice(t0_ns, t1_ns, train_run_id=run_id))
        for name, granted, ended in (("before", 1, 5), ("across", 6, 12), ("after", 13, 14), ("open", 15, None)):
            writer.record(lease(name, "granted", granted))
            if ended is not None:
                writer.record(lease(name, "released", ended))
        until(lambda: monotonic_ns() > now_ns + 10 * milliseconds)
        before = found()
        assert (before.until_ns, before.train_run_id) == (now_ns + 10 * milliseconds, "")
        changes = [(round((change.at_ns - now_ns) / milliseconds), change.lease_id) for change in before.leases]
        assert changes == [(10, "across"), (12, None), (13, "after"), (14, None)]
        writer.record(device("left", now_ns + 20 * milliseconds))
        assert found() is None
