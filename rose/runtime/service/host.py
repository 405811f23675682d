"""A host of a fleet: its devices' agents in one process, the way of its events to the ledger, and its serving engines.

The process can be killed and started again at any time: what it finds it goes on with.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO

from rose.clock import Anchor
from rose.config import DeviceConfig
from rose.errors import UserError
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.writer import LedgerWriter
from rose.runtime import preflight
from rose.runtime.actors import writer_name
from rose.runtime.coserving.agent import AgentSpec, DeviceAgent
from rose.runtime.coserving.lease_file import LeaseFile
from rose.runtime.engines import models
from rose.runtime.engines.sglang import EngineProcess, EngineSpec
from rose.runtime.fleet import FleetPlan
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.notices import DeathWatch
from rose.runtime.service import logs, owner
from rose.runtime.service.places import HostPlan
from rose.runtime.serving import ServingEngines

_LOOK_S = 0.5
_ROTATE_S = 60.0
#: Between two tries to start what did not.
_AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReport:
    """How a host is. `ready`: its agents are at work; else `doing` says what it is at or why it cannot go on."""

    ready: bool
    doing: str
    pid: int
    #: Of each device that is not well, why.
    faults: dict[str, str] = field(default_factory=dict)


class HostActor:
    """A host's process on Ray. Its work is in a thread: it answers at any time."""

    def __init__(self, plan: HostPlan, make_engine: Callable[[EngineSpec], EngineProcess] = EngineProcess) -> None:
        if plan.central is not None and plan.address is None:
            # The file knows the host by a resource: where it is, it knows itself.
            import ray

            plan = replace(plan, address=ray.util.get_node_ip_address())
        self._runner = HostRunner(plan, make_engine)
        self._thread = threading.Thread(target=self._runner.run, name="host", daemon=True)
        self._thread.start()

    def report(self) -> HostReport:
        return self._runner.report()

    def stop(self, serving: bool) -> None:
        """End the agents with their leases, engines and accounts, and send the last events; with `serving`, end the
        serving engines that are ROSE's own too. Returns when it is done."""
        self._runner.stop()
        self._thread.join()
        if serving:
            owner.stop(self._runner.plan)
            # Nothing is left to find here.
            with suppress(OSError):
                shutil.rmtree(self._runner.plan.memory)


class HostRunner:
    """What the process does: begin, look after the agents, end."""

    def __init__(self, plan: HostPlan, make_engine: Callable[[EngineSpec], EngineProcess] = EngineProcess) -> None:
        self.plan = plan
        self._make_engine = make_engine
        self._stopping = threading.Event()
        self._doing = "starting"
        self._faults: dict[str, str] = {}
        self._agents: dict[str, DeviceAgent] = {}
        self._specs: dict[str, AgentSpec] = {}
        self._again_at_s: dict[str, float] = {}
        self._writer: LedgerWriter | None = None
        self._forwarder: Forwarder | None = None
        self._serving: ServingEngines | None = None
        self._lock: IO[str] | None = None
        self._say: Callable[[str], None] = lambda _: None

    def report(self) -> HostReport:
        return HostReport(
            ready=self._doing == "" and not self._stopping.is_set() and len(self._agents) == len(self._specs),
            doing=self._doing,
            pid=os.getpid(),
            faults=dict(self._faults),
        )

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Until `stop`. What a user can mend is tried again and again, and is in the report meanwhile."""
        while not self._stopping.is_set():
            try:
                self._begin()
                break
            except KeyboardInterrupt:
                break
            except (UserError, OSError) as error:
                self._progress(str(error))
                self._end()
                self._stopping.wait(_AGAIN_S)
        rotated_s = time.monotonic()
        while not self._stopping.wait(_LOOK_S):
            self._look()
            if time.monotonic() - rotated_s > _ROTATE_S:
                logs.rotate(self.plan.logs)
                rotated_s = time.monotonic()
        self._end()

    # ------------------------------------------------------------------ begin

    def _begin(self) -> None:
        plan = self.plan
        plan.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        plan.memory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._say = logs.log_to(plan.logs / "host.log")
        self._lock = (plan.memory / "host.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process has {plan.memory}: it is waited for") from None
        self._take_cores()
        own = plan.own
        self._writer = LedgerWriter.open(plan.ledger, writer_name(own.host, "agent"), plan.run_id)
        if plan.central is not None:
            self._forwarder = Forwarder(plan.ledger, plan.central.url, token=plan.central.token)
            self._forwarder.start()
        self._complete_leases(self._writer)
        urls = self._wait_serving() if owner.served(plan) else {}
        attached = [
            device if device.serving_url is not None or device.pool != "serving"
            else device.model_copy(update={"serving_url": urls[device.id]})
            for device in own.device
        ]  # fmt: skip
        self._plan_agents(own.model_copy(update={"device": attached}).device)
        for device_id in self._specs:
            self._start_agent(device_id)
        self._progress("attaching serving engines")
        assert self._serving is not None
        self._serving.attach(self._tend)
        self._progress("")

    def _take_cores(self) -> None:
        """The cores that the host's own work may have: not those that serve."""
        everything = set(range(os.cpu_count() or 1))
        with suppress(OSError):
            os.sched_setaffinity(0, everything)
        named = next((host.cores for host in self.plan.config.hosts if host.name == self.plan.host), [])
        available = os.sched_getaffinity(0)
        serving = {core for device in self.plan.own.device if device.pool == "serving" for core in device.cores}
        os.sched_setaffinity(0, set(named) or (available - serving) or available)

    def _complete_leases(self, writer: LedgerWriter) -> None:
        """An agent that died was not there to end its lease."""
        for device in self.plan.own.device:
            for event in LeaseFile(self.plan.memory / device.id / "page", self.plan.run_id).read().completed():
                writer.record(event)

    def _wait_serving(self) -> dict[str, str]:
        """The URLs of the engines that are ROSE's own, once each answers."""
        wanted = {d.id for d in self.plan.own.device if d.pool == "serving" and d.serving_url is None}
        while not wanted <= (urls := owner.ensure(self.plan)).keys():
            self._progress(
                owner.failure(self.plan) or f"waiting for serving on {', '.join(sorted(wanted - set(urls)))}"
            )
            self._stopping.wait(_LOOK_S)
            self._tend()
        return urls

    def _plan_agents(self, devices: list[DeviceConfig]) -> None:
        plan = self.plan
        own = plan.own.model_copy(update={"device": devices})
        self._progress("looking for the models")
        cache = own.cache.expanduser()
        memory = MemoryPlan(
            config=own,
            serving_model=models.resolve(own.serving.model, cache, self._progress),
            rollout_model=models.resolve(own.rollout.model, cache, self._progress),
        )
        fleet = FleetPlan(
            config=own,
            run_id=plan.run_id,
            anchor=Anchor.take(),
            folder=plan.memory,
            logs=plan.logs,
            serving_model=memory.serving_model,
            rollout_model=memory.rollout_model,
            gateway_url=plan.controller_url,
            address=plan.address,
            fork_server=owner.fork_server(plan),
            free_bytes=preflight.check_gpus(memory),
        )
        serving = {device.id: fleet.serving(device) for device in devices}
        self._serving = ServingEngines([device for device in serving.values() if device is not None], say=self._say)
        self._specs = {device.id: fleet.agent_spec(device, serving[device.id]) for device in devices}

    def _start_agent(self, device_id: str) -> None:
        """Start a device's agent; one that cannot be is tried again, and keeps no other from its work."""
        assert self._writer is not None
        writer = self._writer
        self._progress(f"starting the rollout engine of {device_id}")
        watch = DeathWatch(writer.record)
        agent = DeviceAgent(self._specs[device_id], watch.record, lambda: writer.failure, self._make_engine)
        try:
            agent.start()
        except UserError as error:
            self._fail(device_id, error)
            return
        self._agents[device_id] = agent
        self._faults.pop(device_id, None)

    # ------------------------------------------------------------------ look after, end

    def _look(self) -> None:
        now_s = time.monotonic()
        for device_id in self._specs:
            agent = self._agents.get(device_id)
            if agent is None:
                if self._again_at_s.get(device_id, 0.0) <= now_s:
                    self._start_agent(device_id)
                    self._progress("")
                continue
            try:
                fault = agent.check()
            except UserError as error:
                del self._agents[device_id]
                agent.stop()
                self._fail(device_id, error)
                continue
            self._faults.pop(device_id, None)
            if fault is not None:
                self._faults[device_id] = fault
        if self._serving is not None:
            self._serving.check()

    def _fail(self, device_id: str, error: UserError) -> None:
        self._say(f"{device_id}: {error}")
        self._faults[device_id] = str(error)
        self._again_at_s[device_id] = time.monotonic() + _AGAIN_S

    def _end(self) -> None:
        """In the order that leaves the ledger whole: leases and engines with their accounts, then their events."""
        for agent in self._agents.values():
            agent.stop()
        self._agents = {}
        if self._serving is not None:
            self._serving.stop()
            self._serving = None
        if self._writer is not None:
            self._complete_leases(self._writer)
            self._writer.close()
            self._writer = None
        if self._forwarder is not None:
            self._forwarder.stop()
            self._forwarder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _progress(self, text: str) -> None:
        if text and text != self._doing:
            self._say(text)
        self._doing = text

    def _tend(self) -> None:
        if self._stopping.is_set():
            raise KeyboardInterrupt
