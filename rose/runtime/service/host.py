"""Runs a host's agents and serving engines, and forwards its events. The process may be killed at any time."""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO

from rose import private_files
from rose.config import DeviceConfig, FleetConfig
from rose.errors import UserError
from rose.ledger.hosts.forward import Forwarder, Progress
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.scheduler import Scheduler
from rose.ledger.writer import LedgerWriter
from rose.runtime import places, preflight
from rose.runtime.agent.agent import AgentSpec
from rose.runtime.agent.host_agent import HostAgent
from rose.runtime.agent.rollout_engine import end_without_agent
from rose.runtime.agent.weights.relays import Relays
from rose.runtime.engines.door import Door
from rose.runtime.engines.sglang import EngineProcess, EngineSpec
from rose.runtime.fleet import FleetPlan, host_cores, writer_name
from rose.runtime.host_plan import HostPlan
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.models import models
from rose.runtime.models.models import weights_bytes
from rose.runtime.scheduling.messages import HostFacts
from rose.runtime.service import owner, process
from rose.runtime.service.memory import engines_token
from rose.runtime.service.process import STOPPING, Report
from rose.runtime.serving import AttachedEngine

_LOOK_S = 0.5
_AGAIN_S = 5.0
_FREE = "free.json"
_UNATTACHED = "its serving engine is not attached yet"
MakeEngine = Callable[[EngineSpec], EngineProcess]
_CHECKED = "checked"  # File with the fleet run whose host check passed.


class OwnServing:
    """ROSE's own serving engines on this host. `down` maps a device to the reason why its engine does not serve."""

    def __init__(self, plan: HostPlan) -> None:
        self.down: dict[str, str] = {}
        self._plan = plan
        self._again_s = time.monotonic()
        self._ensured = False  # The running owner has this plan.

    def look(self) -> dict[str, str]:
        plan = self._plan
        if not owner.served(plan):
            owner.stop(plan)  # An owner of an earlier fleet file may still run.
            return {}
        if not (self._ensured and owner.runs(plan)) and time.monotonic() >= self._again_s:
            self._again_s = time.monotonic() + _AGAIN_S
            owner.ensure(plan)
            self._ensured = True
        urls, failures = owner.urls(plan), owner.failures(plan)
        self.down = {
            device_id: failures.get(device_id, "its serving engine is starting")
            for device_id in owner.served(plan)
            if device_id not in urls
        }
        return urls

    def keep(self, say: Callable[[str], None]) -> list[str]:
        """Keep the engines running. Report with `say`. Return the devices that stopped serving since the last call."""
        if not (device_ids := owner.served(self._plan)):
            return []
        down_before = self.down
        try:
            self.look()
        except (UserError, OSError) as error:
            self.down = dict.fromkeys(device_ids, f"its serving engine cannot start: {error}")
        for device_id, why in self.down.items():
            if down_before.get(device_id) != why:
                say(f"{device_id}: {why}")
        return [device_id for device_id in self.down if device_id not in down_before]


class HostActor:
    """The process of a host on Ray. It works in a thread, so that `report` answers at once."""

    def __init__(self, plan: HostPlan | str, make_engine: MakeEngine = EngineProcess) -> None:
        plan = process.load(HostPlan, plan)
        if plan.ledger_token and plan.address is None:
            # A host with a resource in the file finds its own address.
            import ray

            plan = replace(plan, address=ray.util.get_node_ip_address())
        self._runner = HostRunner(plan, make_engine)
        self._thread = process.start_part("host", self._runner.run, plan.logs / "host.log")

    def report(self) -> Report:
        return self._runner.report()

    def stop(self, serving: bool) -> list[str]:
        """End the agents, and with `serving` also ROSE's serving engines. Return the steps that failed."""
        self._runner.stop(leave=not serving)
        self._thread.join()
        if serving:
            self._runner.clear()
        return self._runner.undone


class HostRunner:
    def __init__(self, plan: HostPlan, make_engine: MakeEngine = EngineProcess) -> None:
        self.plan = plan
        self._make_engine = make_engine
        self._stopping = threading.Event()
        self._leave = True
        self._doing = "starting"
        self._agent: HostAgent | None = None
        self._writer: LedgerWriter | None = None
        self._forwarder: Forwarder | None = None
        #: By device: its serving engine, and why it is not attached.
        self._serving: dict[str, AttachedEngine] = {}
        self._unattached: dict[str, str] = {}
        self._attaching: list[threading.Thread] = []
        self._own_serving = OwnServing(plan)
        #: The forwarder's last progress and its time in monotonic seconds.
        self._forwarded: tuple[Progress, float] | None = None
        self._upkeep: Scheduler | None = None
        self._lock: IO[str] | None = None
        self.undone: list[str] = []
        self._say: Callable[[str], None] = lambda _: None

    def report(self) -> Report:
        agent = self._agent
        down = self._own_serving.down
        faults = self._unattached | ({} if agent is None else dict(agent.faults())) | down
        waiting_devices = [
            device.id
            for device in self.plan.own.device
            if agent is None or agent.agent(device.id) is None or device.id in self._unattached | down
        ]
        if (unsent := self._unsent()) is not None:
            faults["ledger"] = f"events wait on this host: {unsent}"
        doing = self._doing or "; ".join(self.undone)
        if not doing and waiting_devices:
            doing = "; ".join(f"{device_id}: {faults.get(device_id, 'is starting')}" for device_id in waiting_devices)
        return Report(doing=STOPPING if self._stopping.is_set() else doing, pid=os.getpid(), faults=faults)

    def facts(self) -> HostFacts:
        writer, forwarded = self._writer, self._forwarded
        waiting = waiting_s = None
        if forwarded is not None:
            progress, at_s = forwarded
            waiting = progress.waiting
            waiting_s = progress.lag_s + time.monotonic() - at_s if waiting else 0.0
        return HostFacts(
            events_dropped=None if writer is None else writer.dropped,
            segments_waiting=waiting,
            waiting_s=waiting_s,
            problem=self._unsent() or (None if writer is None else writer.failure),
        )

    def stop(self, *, leave: bool) -> None:
        self._leave = leave
        self._stopping.set()

    def run(self) -> None:
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
            for device_id in self._own_serving.keep(self._say):
                self._unattached.setdefault(device_id, _UNATTACHED)
            if time.monotonic() - rotated_s > 60.0:
                process.rotate(self.plan.logs)
                rotated_s = time.monotonic()
        self._end()

    def _begin(self) -> None:
        plan = self.plan
        places.make_state(plan.state)
        plan.make_memory()
        self._say = process.log_to(plan.logs / "host.log")
        self._lock = os.fdopen(private_files.open_file(plan.memory / "host.lock", os.O_CREAT), "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"waiting for another process that uses {plan.memory}") from None
        own = plan.own
        self._check(own)
        # The host's own work stays off serving's cores.
        host_config_cores = next((host.cores for host in plan.config.hosts if host.name == plan.host), [])
        os.sched_setaffinity(0, set(host_config_cores) or host_cores(own.device))
        writer = self._open_ledger()
        urls = self._own_serving.look()
        while down := self._own_serving.down:
            self._progress("; ".join(f"{device_id}: {why}" for device_id, why in down.items()))
            self._stopping.wait(_LOOK_S)
            self._tend()
            urls = self._own_serving.look()
        attached = [
            device.model_copy(update={"serving_url": urls[device.id]}) if device.id in urls else device
            for device in own.device
        ]
        self._agent = HostAgent(writer, self._specs(attached), self._relays(), self._make_engine)
        self._agent.start()
        self._upkeep = Scheduler(Ledger(plan.ledger), self._jobs(), self._say_failed)
        self._upkeep.start()
        self._unattached = dict.fromkeys(self._serving, _UNATTACHED)
        # Last, because only `stop` ends these threads.
        self._attaching = [
            process.start(f"attach {device_id}", partial(self._attach, device_id, serving), plan.logs / "host.log")
            for device_id, serving in self._serving.items()
        ]
        self._progress("")

    def _open_ledger(self) -> LedgerWriter:
        plan = self.plan
        if self._writer is None:
            self._writer = LedgerWriter.open(plan.ledger, writer_name(plan.own.host, "agent"), plan.run_id)
        if plan.ledger_token and self._forwarder is None:
            ledger, token, report = Ledger(plan.ledger), plan.ledger_token, self._look_forwarded
            self._forwarder = Forwarder(ledger, plan.controller_url, token, report)
            self._forwarder.start()
        return self._writer

    def _attach(self, device_id: str, serving: AttachedEngine) -> None:
        """Keep a device's serving engine attached to the device's page."""
        while not self._stopping.wait(_LOOK_S):
            if (agent := self._agent) is None or agent.agent(device_id) is None:
                continue
            try:
                if device_id in self._unattached:
                    serving.attach(self._tend)
                    del self._unattached[device_id]
                serving.check()
            except KeyboardInterrupt:
                return
            except (UserError, OSError) as error:
                # Its owner restarts it; until then nothing is lent.
                self._unattached[device_id] = str(error)
                self._stopping.wait(_AGAIN_S)

    def _look_forwarded(self, progress: Progress) -> None:
        unsent_before = self._unsent()
        self._forwarded = progress, time.monotonic()
        if (unsent := self._unsent()) is not None and unsent != unsent_before:
            self._say(f"{progress.waiting} segments of events wait here: {unsent}")

    def _unsent(self) -> str | None:
        if self._forwarded is None:
            return None
        progress, _ = self._forwarded
        return "; ".join([*progress.problems.values(), *filter(None, [progress.stopped])]) or None

    def _jobs(self) -> list[jobs.Job]:
        return jobs.ledger_jobs(**({} if self._forwarder is not None else self.plan.config.archive.model_dump()))

    def _say_failed(self, run: jobs.JobRun) -> None:
        if run.status == "failed":
            self._say(run.line())

    def _check(self, own: FleetConfig) -> None:
        """Check this host once per fleet run. If the fleet file has no `[[host]]` tables, `rose up` has checked it.
        Then check only, after a boot, that owners' servers on GPUs answer."""
        # Ray or an earlier attempt may have narrowed this process's cores.
        with suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        path = self.plan.state / _CHECKED
        if self.plan.config.hosts and not (path.exists() and path.read_text() == self.plan.run_id):
            preflight.check_host(own)
            if (notice := preflight.notice(own)) is not None:
                self._say(notice)
            path.write_text(self.plan.run_id)
        elif own.coserving.enabled and not (self.plan.memory / _FREE).exists():
            # After a boot the server must take its GPU memory first.
            preflight.check_serving(device for device in own.device if device.gpu is not None)

    def _specs(self, devices: list[DeviceConfig]) -> list[AgentSpec]:
        if not devices:
            return []  # The controller's host may have none, and needs no checkpoint then.
        plan = self.plan
        own = plan.own.model_copy(update={"device": devices})
        self._progress("looking for the models")
        memory = MemoryPlan.resolve(own, self._progress)
        fleet = FleetPlan(
            host=plan,
            memory=memory,
            door=None if plan.address is None else Door(plan.address, engines_token(plan.state)),
            fork_server=owner.fork_server(plan),
            free_bytes=owner.free_bytes(memory, plan.memory / _FREE),
            orphan_s=600.0,
        )
        self._serving = {
            device.id: AttachedEngine(device.serving_url, fleet.page(device))
            for device in devices
            if device.serving_url is not None
        }
        return [replace(fleet.agent_spec(device), host_facts=self.facts) for device in devices]

    def _relays(self) -> Relays:
        config, host, budget_bytes = self.plan.config, self.plan.host, 4 << 30
        if self.plan.own.device:
            for rollout in config.rollouts.values():
                model = models.resolve(rollout.model, config.cache.expanduser(), self._say)
                budget_bytes = max(budget_bytes, 3 * weights_bytes(model))
        rules = places.origin_rules(config)
        return Relays(self.plan.state / "relays", budget_bytes, lambda url: places.route_to(config, host, url), rules)

    def clear(self) -> None:
        """Stop ROSE's own serving engines, and remove the pages, after the host has ended."""
        plan = self.plan
        self._step("ROSE's serving engines", lambda: owner.stop(plan))
        # The next start of a kept fleet run may have other devices here.
        self._step("the record of the host check", lambda: (plan.state / _CHECKED).unlink(missing_ok=True))
        self._step("the folder of pages", plan.remove_memory)

    def _end(self) -> None:
        """End leases, engines and accounts, then send their events. Steps that fail are listed in `undone`."""
        self.undone = []
        ended_devices: set[str] = set()
        if (agent := self._agent) is not None:
            self._step("the agents", lambda: ended_devices.update(agent.stop(leave=self._leave)))
            self._agent = None
        for thread in self._attaching:
            thread.join()
        for device_id, serving in () if self._leave else self._serving.items():
            self._step(f"ROSE's part of {device_id}'s serving engine", serving.stop)
        self._attaching, self._serving, self._unattached, self._own_serving.down = [], {}, {}, {}
        for device in () if self._leave else self.plan.own.device:
            if device.id not in ended_devices:
                self._step(f"device {device.id}", partial(self._end_device, device.id))
        if (writer := self._writer) is not None:
            self._step("the host's events", writer.close)
            self._writer = None
        if self._upkeep is not None:
            self._step("the ledger's upkeep", self._upkeep.stop)
            self._upkeep = None
        if self._forwarder is not None:
            self._step("the forwarding of events", self._forwarder.stop)
            self._forwarder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _end_device(self, device_id: str) -> None:
        end_without_agent(self._open_ledger(), self.plan.memory / device_id / "page", device_id)

    def _step(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            self.undone.append(f"{what}: did not end in order: {type(error).__name__}: {error}")
            self._say(self.undone[-1])

    def _progress(self, text: str) -> None:
        if text and text != self._doing:
            self._say(text)
        self._doing = text

    def _tend(self) -> None:
        if self._stopping.is_set():
            raise KeyboardInterrupt
