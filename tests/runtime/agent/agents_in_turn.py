import os
import signal
import time
from dataclasses import replace

from rose.clock import Anchor, monotonic_ns
from rose.events import BUCKETS, DeviceSlice, Lease
from rose.ledger.files import catalog, layout
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent import agent as agents
from rose.runtime.agent.agent import DeviceAgent
from rose.runtime.agent.succession import last_lease, predecessor, same_anchor
from rose.runtime.agent.weights.relays import Relays
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import EngineRecord
from rose.transfer.wire.origin_rules import STRICT
from tests.runtime.agent.agent_of_engine import SECOND, agent_spec, straight
from tests.runtime.coserving.parties import CONTEXT, OtherParty
from tests.runtime.coserving.stand_in_engine import LastingEngine, stand_in_spec

#: Long enough for an engine on a busy host to work in each of them.
SLICE_NS = SECOND * 2 // 5


def _first_agent(connection, spec, ledger, make):
    agents.SLICE_NS = SLICE_NS
    writer = LedgerWriter.open(ledger, "agent-d0", spec.run_id, flush_interval_s=0.05)
    agent = DeviceAgent(spec, writer.record, lambda: writer.failure, make, via=straight)
    agent.start()
    until(lambda: agent._engine.fault is None, 60.0)
    connection.send("started")
    time.sleep(600)


def local_relays(folder):
    return Relays(folder / "relays", 1 << 20, lambda _: "loopback", STRICT)


def until(condition, seconds=30.0, every_s=0.01):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(every_s)


def idle_slice(t0_ns, t1_ns, **fields):
    ns_by_bucket = {f"{bucket}_ns": 0 for bucket in (*BUCKETS, "overlap")} | {"idle_ns": t1_ns - t0_ns}
    return DeviceSlice(at_us=t1_ns // 1000, device_id="d0", t0_ns=t0_ns, t1_ns=t1_ns, **ns_by_bucket, **fields)


def lease_event(lease_id, action, at_us):
    terms = {"kv_budget_bytes": 1, "compute_share": 1.0, "expires_at_us": at_us}
    return Lease(at_us=at_us, device_id="d0", lease_id=lease_id, action=action, **terms)


class Recording:
    def rows(self, sql):
        with catalog.connect(self.ledger) as connection:
            return connection.execute(sql).fetchall()


class Host(Recording):
    """Engines are small servers, unless `engine` gives the spec of one that `make` makes."""

    def __init__(self, folder, gateway, orphan_s=600.0, engine=None, make=LastingEngine, **coserving):
        self.make = make
        self.folder, self.ledger = folder, folder / "ledger"
        engine = replace(engine or stand_in_spec(folder), orphan_s=orphan_s, any_port=True)
        self.spec = agent_spec(folder, gateway.url, engine, run_id="fleet", **coserving)
        layout.create(self.ledger)
        self.spec = replace(self.spec, anchor=self.same_anchor(self.spec.anchor))
        self.serving = self.process = self.agent = self.writer = None

    def first_agent(self):
        """In a process of its own; returns the record of its engine."""
        ours, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_first_agent, args=(theirs, self.spec, self.ledger, self.make))
        self.process.start()
        assert ours.poll(60)
        assert ours.recv() == "started"
        self.serving = OtherParty(self.spec.page, Party.SERVING)
        self.serving.do("page.set_load(load)")
        return EngineRecord.read(self.spec.page)

    def agent_that_leaves(self):
        self.next_agent()
        return self.leave()

    def leave(self):
        self.agent.stop(leave=True)
        self.writer.close()
        self.agent = self.writer = None
        return EngineRecord.read(self.spec.page)

    def kill_agent(self):
        self.process.kill()
        self.process.join()

    def next_agent(self, *, wait=True, **changes):
        spec = replace(self.spec, **changes)
        # As a process that begins anew would: its own reading of the clocks, another free port.
        spec = replace(spec, anchor=self.same_anchor(Anchor(spec.anchor.utc_minus_monotonic_ns + SECOND)))
        self.writer = LedgerWriter.open(self.ledger, "agent-d0", "fleet", flush_interval_s=0.05)
        before = predecessor(self.ledger, "fleet", "d0", spec.anchor)
        self.agent = DeviceAgent(
            spec,
            self.writer.record,
            lambda: self.writer.failure,
            self.make,
            before=before,
            via=straight,
            last_lease=last_lease(self.ledger, "fleet", "d0"),
        )
        self.agent.start()
        if wait and spec.rollout is not None:
            until(lambda: self.agent._engine.fault is None, 60.0)

    def same_anchor(self, anchor):
        return same_anchor(self.spec.page, self.ledger, "fleet", "d0", anchor)

    def close(self):
        if self.process is not None:
            self.kill_agent()
        if self.agent is not None:
            self.agent.stop()
            self.writer.close()
        if self.serving is not None:
            self.serving.kill()
        for record in adoption.living(self.folder):
            os.kill(record.pid, signal.SIGKILL)

    @property
    def lent(self):
        return ArbiterPage(self.spec.page).lease().expires_ns > monotonic_ns()
