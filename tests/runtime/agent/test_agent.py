import itertools
import os
import signal
import time

import pytest

from rose.clock import monotonic_ns
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent import rollout_engine
from rose.runtime.agent.agent import DeviceAgent
from rose.runtime.agent.rollout_engine import RolloutEngine
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.policy.lease import DRAINED, WITHHELD
from rose.runtime.policy.slack import Budgets, LeaseTerms
from rose.runtime.scheduling.messages import Terms
from tests.runtime.agent.agent_of_engine import SECOND, agent_spec, straight, with_other
from tests.runtime.agent.agents_in_turn import Recording, until
from tests.runtime.coserving.lending import cut_record
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.coserving.stand_in_engine import StandInEngine, stand_in_spec


class Device(Recording):
    def __init__(self, folder, gateway, pool="serving", engine=True, **coserving):
        self.ledger = folder / "ledger"
        own = {"kv_bytes": 1000, "lease_ttl_s": 0.8, **coserving}
        self.spec = agent_spec(folder, gateway.url, stand_in_spec(folder) if engine else None, pool=pool, **own)
        if engine:
            self.spec = with_other(self.spec, "other")
        self.writer = LedgerWriter.open(self.ledger, "agent-d0", "run", flush_interval_s=0.02)
        self.agent = DeviceAgent(
            self.spec, self.writer.record, lambda: self.writer.failure, StandInEngine, via=straight
        )
        self.page = ArbiterPage(self.spec.page)
        self.serving = None

    def serve(self):
        self.serving = OtherParty(self.spec.page, Party.SERVING)
        self.serving.do("page.set_load(load)")
        self.serving.do("describe(path, Attachment(role='serving', pid=page.get(me, Field.PID), model='m'))")
        return self.serving

    def lend(self, gateway, step=None):
        gateway.want(step=step, r0=10 * SECOND)
        until(self.lent)

    def lent(self):
        return self.page.lease().expires_ns > monotonic_ns()

    @property
    def engine(self):
        return self.agent._engine.engine

    def close(self):
        self.agent.stop()
        self.writer.close()
        if self.serving is not None:
            self.serving.kill()


@pytest.fixture
def start(tmp_path, gateway, monkeypatch):
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.01)
    devices = []

    def make(*, serving=True, **options):
        device = Device(tmp_path, gateway, **options)
        devices.append(device)
        if serving:
            device.serve()
        device.agent.start()
        if device.agent._engine is not None:
            until(lambda: device.agent._engine.fault is None)
        return device

    yield make
    for device in devices:
        device.close()


LEASES = "SELECT lease_id, closed_by, close_reason FROM lease ORDER BY granted_at"


def test_demand_lends_and_its_end_gives_back(start, gateway):
    device = start()
    assert not device.lent()
    device.lend(gateway, step=5)
    terms = device.page.lease()
    assert (terms.number, terms.kv_budget_tokens, terms.compute_share, terms.regret_share) == (1, 400, 1.0, 0.05)
    gateway.wait(lambda: gateway.heard[-1].engines[0].lease_id == "run-d0-1")
    (report,) = gateway.heard[-1].engines
    assert report.borrowed
    assert report.alive
    until(lambda: device.page.lease().expires_ns > terms.expires_ns)
    gateway.want()
    until(lambda: device.page.lease() == LeaseTerms())
    assert device.agent.check() is None
    device.close()
    assert device.rows(LEASES) == [("run-d0-1", "released", "no rollout wants the device any more")]
    assert device.rows("SELECT DISTINCT step FROM lease_event") == [(5,)]
    actions = device.rows("SELECT role, action FROM engine ORDER BY event_time, seq")
    assert actions == [("serving", "attached"), ("rollout", "started"), ("rollout", "stopped"), ("serving", "detached")]
    ((activation_ns, sums),) = device.rows("SELECT sum(activation_ns), bool_and(t1_ns - t0_ns = ns) FROM device_slice")
    assert sums
    assert activation_ns > 0, "the start is charged to the engine that was started"


def test_settings_are_taken_over_under_a_lease(start, gateway):
    device = start(lease_ttl_s=30.0)
    device.lend(gateway)
    classes = [{"priority": 1, "ttft_budget_ms": 200.0, "tpot_budget_ms": 20.0}]
    gateway.terms = Terms(
        ttft_budget_ms=700.0,
        tpot_budget_ms=70.0,
        classes=classes,
        max_prompt_tokens=64,
        coserving={"stretch": 2.0, "regret_share": 0.1, "lease_ttl_s": 60.0},
    )
    device.lend(gateway)
    budgets = Budgets(700_000_000, 70_000_000, classes={1: Budgets(200_000_000, 20_000_000)})
    until(lambda: device.page.budgets() == budgets)
    assert device.page.lease().number == 1, "the lease goes on"
    until(lambda: device.page.lease().stretch == 2.0)
    gateway.want()
    until(lambda: not device.lent())
    device.lend(gateway)
    assert (device.page.lease().number, device.page.lease().regret_share) == (2, 0.1)


def test_nothing_is_lent_without_a_serving_engine_and_what_is_ends_with_it(start, gateway):
    device = start(serving=False)
    gateway.want(r0=SECOND)
    until(lambda: device.agent.check() == "d0: no serving engine is attached to the device's page")
    assert device.page.lease() == LeaseTerms()
    device.serve()
    until(device.lent)
    device.serving.kill()
    until(lambda: not device.lent())
    pid = device.engine.pid
    device.serve()
    until(device.lent)
    assert device.engine.pid == pid, "the rollout engine went on"
    device.close()
    assert device.rows(LEASES)[0] == ("run-d0-1", "released", "no serving engine is attached to the device's page")


def test_a_gateway_that_is_gone_leaves_nothing_lent(start, gateway):
    device = start()
    device.lend(gateway)
    gateway.close()
    until(lambda: device.page.lease() == LeaseTerms())
    time.sleep(0.3)
    assert not device.lent(), "its last answer lends nothing more"
    device.close()
    ((lease_id, closed_by, reason),) = device.rows(LEASES)
    assert (lease_id, closed_by) == ("run-d0-1", "expired")
    assert "gateway was away" in reason


def test_lateness_by_lending_takes_back_step_by_step(start, gateway):
    device = start(lease_ttl_s=30.0)
    device.lend(gateway)
    for late, condition in (
        (1, lambda: device.page.lease().compute_share == 0.5),
        (2, lambda: device.page.lease().kv_budget_tokens == 200),
        (3, lambda: device.page.lease() == LeaseTerms()),
    ):
        device.serving.do(f"page.set_load(replace(load, finished={2 * late}, late_by_lending={late}, running=1))")
        until(condition)
        device.serving.do(f"page.set_load(replace(load, finished={2 * late + 1}, late_by_lending={late}, running=1))")
    until(lambda: device.page.lease().number == 2)  # One finished in time since.
    assert (device.page.lease().compute_share, device.page.lease().kv_budget_tokens) == (0.5, 200)
    gateway.wait(lambda: len(gateway.preempted) == 1)
    device.close()
    assert device.rows(LEASES)[0][:2] == ("run-d0-1", "preempted")
    changes = device.rows("SELECT action FROM lease_event WHERE action <> 'renewed' ORDER BY event_time, seq")
    assert [action for (action,) in changes] == ["granted", "throttled", "resized", "preempted", "granted", "released"]
    assert device.rows("SELECT action, requests FROM preemption") == [("revoke", 3)]


def test_cuts_yields_and_holds_of_the_engine_are_in_the_ledger(start, gateway):
    device = start()
    with OtherParty(device.spec.page, Party.ROLLOUT) as engine:
        gateway.want(r0=SECOND)
        until(device.lent)
        now = monotonic_ns()
        engine.do(
            f"[page.write_span(me, SpanRecord(Span.YIELD, {now} + i, {now} + i + 10, 3, 7)) for i in range(0, 50, 10)]"
        )
        engine.do(f"page.write_span(me, SpanRecord(Span.HELD, {now} + 50, {now} + 80, Hold.REGRET))")
        cut = cut_record(at_ns=now, tokens_before=400, tokens_after=200, requests=2, tokens_kept=30)
        engine.do(f"page.set_cut({cut!r})")
        until(lambda: device.page.lease().frozen)
        assert device.page.lease().kv_budget_tokens == 200
        device.close()
    (cut, yields) = device.rows(
        "SELECT action, count, duration_ns, longest_ns, latency_ns, requests, tokens_kept, kv_budget_bytes_before, "
        "kv_budget_bytes_after, returned_bytes, lease_id FROM preemption ORDER BY action"
    )
    assert cut == ("cut", None, 900, None, None, 2, 30, 800, 400, 4096, "run-d0-1")
    assert yields == ("yield", 5, 50, 10, 7, None, None, None, None, None, "run-d0-1")
    assert device.rows("SELECT reason, count, duration_ns, lease_id FROM hold") == [("regret", 1, 30, "run-d0-1")]


def test_windows_are_drawn_and_nothing_is_lent_in_those_that_are_withheld(start, gateway, monkeypatch):
    monkeypatch.setattr("rose.runtime.agent.agent.WATCH_S", 0.01)
    device = start(holdout_share=0.5, holdout_window_s=0.3, holdout_washout_s=0.05)
    gateway.want(r0=10 * SECOND)
    # A window is in the ledger before anything is decided by it.
    acts = """
        SELECT DISTINCT w.withheld, l.action, l.reason
        FROM lease_event AS l ASOF JOIN holdout AS w ON l.seq >= w.seq
    """
    expected = {(False, "granted", None), (True, "released", WITHHELD)}
    until(lambda: expected <= set(device.rows(acts)), every_s=0.1)
    device.close()
    assert {action for withheld, action, _ in device.rows(acts) if withheld} <= {"released", "expired"}
    rows = device.rows("SELECT t0_ns, t1_ns, withheld, after_withheld, holdout_share FROM holdout ORDER BY t0_ns")
    assert rows[0][3:] == (None, 0.5)
    for before, after in itertools.pairwise(rows):
        assert before[1] <= after[0]
        assert after[3:] == (before[2] if before[1] == after[0] else None, 0.5)
    ((held_ns,),) = device.rows("SELECT sum(duration_ns) FROM hold WHERE reason = 'withheld'")
    assert held_ns > 0


def test_a_dedicated_device_has_no_leases(start, gateway):
    device = start(serving=False, pool="rollout")
    gateway.wait(lambda: bool(gateway.heard) and gateway.heard[-1].engines[0].alive)
    (report,) = gateway.heard[-1].engines
    assert (report.borrowed, report.lease_id, report.slack_ok) == (False, None, True)
    assert device.agent.check() is None
    os.kill(device.engine.pid, signal.SIGKILL)
    gateway.wait(lambda: not gateway.heard[-1].engines[0].alive)
    gateway.wait(lambda: "is started again" in (gateway.heard[-1].engines[0].fault or ""))
    gateway.wait(lambda: gateway.heard[-1].engines[0].alive and gateway.heard[-1].engines[0].fault is None)


def test_what_moves_of_an_engines_memory_is_recorded_and_no_turn_is_placed_before_it_came(start, gateway, monkeypatch):
    monkeypatch.setattr("rose.runtime.policy.lease.ACTIVATION_NS_MAX", 300_000_000)
    device = start()
    with OtherParty(device.spec.page, Party.ROLLOUT) as engine:
        engine.do("page.set(me, Field.AWAY_SINCE_NS, 1)")
        gateway.want(r0=10 * SECOND)
        gateway.wait(lambda: gateway.heard[-1].engines[0].lease_id == "run-d0-1")
        assert not gateway.heard[-1].engines[0].slack_ok
        until(lambda: device.page.lease().number != 1)
        until(device.lent)
        engine.do("page.set(me, Field.AWAY_SINCE_NS, 0)")
        number = device.page.lease().number
        now = monotonic_ns()
        spans = ((now, 4 * 500), (now + 1000, 4 * 500 + 1), (now + 2000, 4 * 300 + 2), (now + 3000, 4 * 200 + 1))
        for start_ns, aux in spans:
            engine.do(f"page.write_span(me, SpanRecord(Span.ACTIVATION, {start_ns}, {start_ns + 100}, {aux}))")
        gateway.wait(lambda: gateway.heard[-1].engines[0].slack_ok)
        gateway.want()
        until(lambda: not device.lent())
    device.close()
    reason = "the rollout engine's memory was not on the device within 5 s"
    assert device.rows(LEASES)[0] == ("run-d0-1", "released", reason)
    moved = device.rows(
        "SELECT action, lease_id, moved_bytes, duration_ns, reason FROM engine WHERE action LIKE '%activated' "
        "ORDER BY moved_bytes DESC, action"
    )
    lease_id = f"run-d0-{number}"
    assert [row[:4] for row in moved] == [
        ("activated", lease_id, 500, 100),
        ("deactivated", lease_id, 500, 100),
        ("activated", None, 300, 100),
        ("deactivated", None, 200, 100),
    ]
    assert moved[0][4].startswith("the KV pool alone")
    assert moved[2][4] == "the weights alone, for a sync"


def test_what_the_controller_says_of_a_device_is_kept_to_and_its_fault_is_reported(start, gateway):
    device = start()
    gateway.train_run_id = "trains"
    device.lend(gateway)
    gateway.drained = True
    gateway.want(r0=10 * SECOND)
    until(lambda: not device.lent())
    gateway.drained = False
    device.serving.kill()
    gateway.want(r0=10 * SECOND)
    gateway.wait(lambda: gateway.heard[-1].fault == "no serving engine is attached to the device's page")
    assert gateway.heard[-1].clock.utc_ns > gateway.heard[-1].clock.monotonic_ns
    assert gateway.heard[-1].engines[0].run_id is None
    device.close()
    assert device.rows(LEASES)[0] == ("run-d0-1", "released", DRAINED)
    runs = device.rows("SELECT DISTINCT train_run_id FROM device_slice ORDER BY ALL")
    assert runs == [("run",), ("trains",)]


def test_a_target_that_cannot_be_reached_is_reported_and_leaves_the_engine_as_it_is(start, gateway):
    device = start()

    def failed():
        return gateway.heard[-1].engines[0].failed if gateway.heard else None

    gateway.aim(r0=("a", 3, "http://127.0.0.1:1"))
    gateway.wait(lambda: (failed() or "").startswith("version 3 of run 'a': "))
    gateway.aim(r0=("a", 3, "not a url"))
    gateway.wait(lambda: "url is 'not a url'" in (failed() or ""))
    gateway.aim()
    gateway.wait(lambda: failed() is None)
    assert gateway.heard[-1].engines[0].alive
    assert device.agent.check() is None


def test_what_becomes_of_an_engine_once_its_run_is_over_is_not_that_runs(start, gateway):
    device = start(serving=False, pool="rollout", heartbeat_s=0.05)
    gateway.aim(r0=("a", 3, "http://127.0.0.1:1"))
    gateway.wait(lambda: bool(gateway.heard) and gateway.heard[-1].engines[0].failed is not None)
    # The gateway does not say whose the engine is.
    gateway.aim()
    gateway.wait_until_heeded()
    assert device.agent._rollout_runs.now == "a"
    gateway.rollout_run_ids = {"r0": None}
    gateway.aim()
    gateway.wait_until_heeded()
    first = device.engine.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: device.engine.pid != first and device.agent.check() is None)
    device.close()
    assert ("a",) in device.rows("SELECT rollout_run_id FROM device_slice")
    starts = device.rows("SELECT rollout_run_id FROM device_slice WHERE activation_ns > 0 ORDER BY t0_ns")
    assert len(starts) >= 2
    assert set(starts) == {("run",)}


def test_an_engine_gets_another_model_for_the_run_that_is_charged_for_it(start, gateway):
    device = start()
    device.lend(gateway)
    first = device.engine.pid
    gateway.wait(lambda: gateway.heard[-1].engines[0].model is not None)
    (before,) = gateway.heard[-1].engines
    assert (before.model, before.capacity, device.page.lease().kv_budget_tokens) == ("stand-in", 4, 400)
    assert before.start_ns > 0
    gateway.rollout_run_ids, gateway.models = {"r0": "b"}, {"r0": "other"}
    gateway.want(r0=10 * SECOND)
    gateway.wait(lambda: gateway.heard[-1].engines[0].model == "other")
    assert device.engine.pid != first
    assert gateway.heard[-1].engines[0].capacity == 7
    until(device.lent)
    assert device.page.memory().rollout_bytes_per_token == 4
    assert device.page.lease().kv_budget_tokens == 200, "the same bytes hold half as many of its tokens"
    gateway.models = {"r0": "unknown"}
    gateway.want(r0=9 * SECOND)
    gateway.wait(lambda: gateway.heard[-1].engines[0].unstarted == "unknown")
    assert gateway.heard[-1].engines[0].alive
    device.close()
    lives = device.rows("SELECT action, model, reason FROM engine WHERE role = 'rollout' ORDER BY event_time, seq")
    assert lives == [
        ("started", "stand-in", None),
        ("stopped", "stand-in", "model 'other' is wanted"),
        ("started", "other", None),
        ("stopped", "other", None),
    ]
    starts = device.rows("SELECT rollout_run_id FROM device_slice WHERE activation_ns > 0 ORDER BY t0_ns")
    assert list(dict.fromkeys(starts)) == [("run",), ("b",)]
    assert len(device.rows(LEASES)) == 2, "nothing is lent while it starts"


def test_an_engine_that_a_run_gets_again_with_its_weights_is_that_runs(start, gateway, monkeypatch):
    device = start(serving=False, pool="rollout", heartbeat_s=0.05)
    monkeypatch.setattr(RolloutEngine, "held", property(lambda _: ("a", 3)))
    for run_id, expected in ((None, ""), ("b", ""), ("a", "a"), ("b", "a")):
        gateway.rollout_run_ids = {"r0": run_id}
        gateway.aim()
        gateway.wait_until_heeded()
        assert device.agent._rollout_runs.now == expected
