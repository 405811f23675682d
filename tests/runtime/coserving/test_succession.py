"""An agent that is killed, and the next one: real processes, a real page and ledger; engines are small servers."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from rose import config
from rose.clock import Anchor, monotonic_ns
from rose.ledger import catalog
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.agent import AgentSpec, DeviceAgent
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.coserving.succession import predecessor, same_anchor
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import EngineRecord
from rose.runtime.policy.slack import Budgets
from tests.runtime.coserving.lasting_engine import LastingEngine
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.coserving.scripted_gateway import ScriptedGateway
from tests.runtime.coserving.stand_in_engine import stand_in_spec

SECOND = 1_000_000_000
AGENT = """
import pickle, sys, time
from pathlib import Path
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.agent import DeviceAgent
from tests.runtime.coserving.lasting_engine import LastingEngine
spec, ledger = pickle.loads(Path(sys.argv[1]).read_bytes())
writer = LedgerWriter.open(ledger, "agent-d0", spec.run_id, flush_interval_s=0.3)
agent = DeviceAgent(spec, writer.record, lambda: writer.failure, LastingEngine)
agent.start()
print("started", flush=True)
time.sleep(600)
"""


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


class Host:
    """A device, its gateway and serving engine, and one agent after another."""

    def __init__(self, folder, gateway, orphan_s=600.0):
        self.folder, self.ledger = folder, folder / "ledger"
        engine = replace(stand_in_spec(folder), orphan_s=orphan_s, any_port=True)
        self.spec = AgentSpec(
            device=config.DeviceConfig(id="d0", pool="serving", device_class="cpu-core", cores=[0], kv_bytes=1000),
            coserving=config.CoservingConfig(lease_ttl_s=1.5, heartbeat_s=0.2, drift_audit_s=0, holdout_share=0),
            budgets=Budgets(SECOND, SECOND),
            max_prompt_tokens=10,
            run_id="fleet",
            anchor=Anchor.take(),
            page=folder / "page",
            staging=folder / "staging",
            rollout=engine,
            rollout_capacity=4,
            rollout_kv_bytes_per_token=2,
            serving_url="http://127.0.0.1:1",
            serving_engine_id="s0",
            serving_model="m",
            serving_kv_bytes_per_token=4,
            gateway_url=gateway.url,
            gateway_token=None,
            route="loopback",
        )
        self.spec = replace(self.spec, anchor=same_anchor(self.spec.page, "fleet", self.spec.anchor))
        self.serving = self.process = self.agent = self.writer = None

    def first_agent(self):
        """In a process of its own; returns the record of its engine."""
        (self.folder / "spec").write_bytes(pickle.dumps((self.spec, self.ledger)))
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(self.folder / "spec")], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "started\n"
        self.serving = OtherParty(self.spec.page, Party.SERVING)
        self.serving.do("page.set_load(load)")
        return EngineRecord.read(self.spec.page)

    def kill_agent(self):
        self.process.kill()
        self.process.wait()

    def next_agent(self, **changes):
        """In this process; returns how long it took to start."""
        spec = replace(self.spec, **changes)
        # As a process that begins anew would: its own reading of the clocks, another free port.
        spec = replace(spec, anchor=same_anchor(spec.page, "fleet", Anchor(spec.anchor.utc_minus_monotonic_ns + SECOND)))
        self.writer = LedgerWriter.open(self.ledger, "agent-d0", "fleet", flush_interval_s=0.3)
        before = predecessor(self.ledger, "fleet", "d0", spec.anchor)
        self.agent = DeviceAgent(
            spec, self.writer.record, lambda: self.writer.failure, LastingEngine, before=before
        )
        began_ns = monotonic_ns()
        self.agent.start()
        return monotonic_ns() - began_ns

    def close(self):
        if self.process is not None:
            self.kill_agent()
            self.process.stdout.close()
        if self.agent is not None:
            self.agent.stop()
            self.writer.close()
        if self.serving is not None:
            self.serving.kill()
        for record in adoption.living(self.folder):
            os.kill(record.pid, signal.SIGKILL)

    def rows(self, sql):
        with catalog.connect(self.ledger) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def gateway():
    with ScriptedGateway() as running:
        yield running


@pytest.fixture
def host(tmp_path, gateway):
    made = Host(tmp_path, gateway)
    yield made
    made.close()


def lent(host):
    return ArbiterPage(host.spec.page).lease().expires_ns > monotonic_ns()


def test_the_next_agent_takes_up_the_engine_ends_the_lease_and_accounts_for_all_of_the_time(host, gateway):
    record = host.first_agent()
    gateway.want(r0=60 * SECOND)
    until(lambda: lent(host))
    page = ArbiterPage(host.spec.page)
    # A slice is in the ledger, and a second that is in none yet.
    until(lambda: host.rows("SELECT count(*) FROM device_slice WHERE lease_id IS NOT NULL")[0][0] >= 1)
    engine = LastingEngine(replace(host.spec.rollout, port=record.port))
    turns = []
    turn = threading.Thread(
        target=lambda: turns.append(
            engine.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 200}})
        )
    )
    turn.start()
    time.sleep(0.5)
    host.kill_agent()
    assert page.lease().number == 1, "what it said stays on the page"
    assert not page.alive(Party.AGENT)
    time.sleep(0.5)
    took_ns = host.next_agent()
    assert took_ns < 2 * SECOND
    assert not page.replaced()
    assert host.agent._lives.engine.pid == record.pid
    assert host.agent._lives.engine.spec.port == record.port
    until(lambda: page.lease().number == 2)
    turn.join()
    assert len(turns[0]["output_ids"]) == 200, "the turn went on all the while"
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
    assert worked > 0.9
    assert least > 0.5
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


def test_an_engine_that_died_meanwhile_is_told_of_and_another_is_started(host):
    record = host.first_agent()
    host.kill_agent()
    os.kill(record.pid, signal.SIGKILL)
    until(lambda: record.process() is None)
    host.next_agent()
    assert host.agent._lives.engine.pid != record.pid
    host.writer.flush()
    lives = host.rows("SELECT action, pid, reason FROM engine WHERE role = 'rollout' ORDER BY event_time, seq")
    assert [life[0] for life in lives] == ["started", "died", "started"]
    assert lives[1][1:] == (record.pid, "it ended while it had no agent")


@pytest.mark.parametrize(
    ("changes", "signal_number", "reason"),
    [
        ({"max_total_tokens": 200}, None, "it was started as another one than is wanted now"),
        ({}, signal.SIGSTOP, "it does not answer (timed out)"),
    ],
    ids=["another spec", "stopped"],
)
def test_one_that_cannot_be_taken_up_is_ended(host, monkeypatch, changes, signal_number, reason):
    monkeypatch.setattr("rose.runtime.coserving.rollout_engine._ANSWER_S", 0.3)
    record = host.first_agent()
    host.kill_agent()
    if signal_number is not None:
        os.kill(record.pid, signal_number)
    host.next_agent(rollout=replace(host.spec.rollout, **changes))
    assert record.process() is None
    assert host.agent._lives.engine.pid != record.pid
    host.writer.flush()
    ((died,),) = host.rows("SELECT reason FROM engine WHERE action = 'died'")
    assert died == reason


def test_an_agent_that_leaves_its_engine_leaves_no_gap_either(host, gateway):
    record = host.first_agent()
    host.kill_agent()
    host.next_agent()
    host.agent.stop(leave=True)
    host.writer.close()
    assert record.process() is not None
    host.next_agent()
    assert host.agent._lives.engine.pid == record.pid
    host.agent.stop()
    host.writer.close()
    slices = host.rows("SELECT t0_ns, t1_ns FROM device_slice ORDER BY t0_ns")
    assert [t1_ns for _, t1_ns in slices[:-1]] == [t0_ns for t0_ns, _ in slices[1:]]
    assert host.rows("SELECT count(*) FROM tenure") == [(1,)]


def test_without_an_agent_an_engine_ends_by_itself(tmp_path, gateway):
    host = Host(tmp_path, gateway, orphan_s=0.5)
    try:
        record = host.first_agent()
        time.sleep(1.0)
        assert record.process() is not None
        host.kill_agent()
        until(lambda: record.process() is None)
        assert "no agent was on" in host.spec.rollout.log.read_text()
    finally:
        host.close()


def test_an_engine_whose_record_is_gone_ends_by_itself(host):
    record = host.first_agent()
    host.kill_agent()
    adoption.record_path(host.spec.page).unlink()
    until(lambda: record.process() is None)
