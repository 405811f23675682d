"""Keeps a fleet: places its parts on their hosts, and anew where Ray gave one up; ends them in order.

It is an actor on the first host, and remembers on that host's disk what a fleet run is, so that it may die, and Ray
with it: the next one, under the same name, finds what runs and goes on.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from rose.config import FleetConfig, HostConfig
from rose.errors import UserError
from rose.events import Run
from rose.ledger.hosts import tokens
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.scheduler import Scheduler
from rose.ledger.writer import LedgerWriter
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import PartDiedError
from rose.runtime.fleet import recorded_config, writer_name
from rose.runtime.service import local_ray, places
from rose.runtime.service.controller import CentralActor, CentralPlan, ControllerActor, ControllerPlan
from rose.runtime.service.fabric import Fabric, UnreachableError
from rose.runtime.service.host import HostActor, HostReport
from rose.runtime.service.logs import log_to
from rose.runtime.service.memory import FleetMemory, Remembered
from rose.runtime.service.places import Central, HostPlan
from rose.runtime.traffic.trace import fit, open_trace

KEEPER = "keeper"
_CONTROLLER, _CENTRAL = "controller", "ledger"
_LOOK_S = 0.5
_ASK_TIMEOUT_S = 5.0
#: Engines are stopped, accounts closed and the last events sent.
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PartState:
    """How a part of the fleet is. `doing`: what it is at, or why it is not ready; nothing if it is."""

    name: str
    ready: bool
    doing: str
    pid: int | None = None
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetState:
    """How the fleet is, for who started it or looks after it."""

    run_id: str
    url: str
    parts: list[PartState]
    stopped: bool = False

    @property
    def ready(self) -> bool:
        return bool(self.parts) and all(part.ready for part in self.parts)


@dataclass(slots=True, eq=False)
class _Part:
    """A named actor, and the question that it was asked last."""

    name: str
    place: Callable[[], Any]
    resource: str
    actor: Any = None
    call: Any = None
    asked_s: float = 0.0
    state: PartState = field(init=False)

    def __post_init__(self) -> None:
        self.state = PartState(name=self.name, ready=False, doing="is being placed")


class Keeper:
    """The actor. All that it does is done by one thread; `state` may be asked at any time."""

    def __init__(
        self,
        config: FleetConfig,
        first_address: str,
        make_host: dict[str, Any] | None = None,
        lives_with: int | None = None,
    ) -> None:
        """`first_address` is where the first host is; `make_host` are further arguments of the hosts' actors.
        `lives_with` is the process that the fleet ends with, if it does."""
        self._config, self._first_address = config, first_address
        self._make_host = make_host or {}
        self._memory = FleetMemory(config)
        self._fabric = Fabric(places.namespace(config))
        self._say = log_to(self._logs / "keeper.log")
        self._remembered = Remembered(run_id="")
        self._parts: list[_Part] = []
        self._stopping = threading.Event()
        self._stopped = False
        self._fault = ""
        self._upkeep: Scheduler | None = None
        self._writer: LedgerWriter | None = None
        self._lives_with: psutil.Process | None = None
        if lives_with is not None:
            with suppress(psutil.NoSuchProcess):
                self._lives_with = psutil.Process(lives_with)
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._thread.start()

    def state(self) -> FleetState:
        parts = [part.state for part in self._parts]
        if self._fault:
            parts = [PartState(name=KEEPER, ready=False, doing=self._fault), *parts]
        return FleetState(run_id=self._remembered.run_id, url=self._remembered.url, parts=parts, stopped=self._stopped)

    def config(self) -> str:
        """The configuration that it keeps, without its secret."""
        return recorded_config(self._config)

    def stop(self) -> None:
        """Begin to end the fleet; `state` says how far it is."""
        self._stopping.set()

    def restart(self, host: str) -> None:
        """End a host's process in order and have it started again, with what is installed there now. Returns once it
        is being started; raises UnreachableError if it cannot be asked to end."""
        part = next(part for part in self._parts if part.name == f"host {host}")
        if part.actor is not None:
            self._say(f"{part.name} is started anew")
            self._change(part, PartState(name=part.name, ready=False, doing="is started anew"))
            self._fabric.ask(part.actor, "stop", False, timeout_s=_STOP_TIMEOUT_S)
            self._fabric.end(part.actor, again=True)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._begin()
                self._fault = ""
                break
            except (UserError, OSError) as error:
                self._fault = str(error)
                self._say(self._fault)
                self._stopping.wait(5.0)
        while not self._stopping.is_set():
            for part in self._parts:
                self._look(part)
            self._stopping.wait(_LOOK_S)
            if self._lives_with is not None and not self._lives_with.is_running():
                self._say(f"process {self._lives_with.pid}, which this fleet lives with, has ended")
                break
        self._end()
        self._stopped = True
        if not self._stopping.is_set():
            local_ray.stop_later(self._memory.folder)

    def _begin(self) -> None:
        config, hosts = self._config, places.hosts(self._config)
        remembered = self._remembered = self._memory.begin()
        if remembered.port is None:
            remembered.port = config.gateway.port or free_port(config.gateway.host)
        address = hosts[0].address or self._first_address
        many = len(hosts) > 1
        shown = address if many else {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.gateway.host, config.gateway.host)  # noqa: S104
        remembered.url = f"http://[{shown}]:{remembered.port}" if ":" in shown else f"http://{shown}:{remembered.port}"
        remembered.gateway_token = config.gateway.token
        remembered.hosts = [host.name for host in hosts]
        self._memory.write(remembered)
        if self._writer is None:
            name = writer_name(hosts[0].name if config.hosts else config.host, "deployment")
            self._writer = LedgerWriter.open(self._ledger, name, remembered.run_id)
        if not remembered.recorded:
            self._writer.record(self._event("started"))
            remembered.recorded = True
            self._memory.write(remembered)
        if self._upkeep is None:
            self._upkeep = Scheduler(self._ledger, jobs.ledger_jobs(jobs.Settings()), self._say_failed)
            self._upkeep.start()
        parts = [self._controller(hosts[0])]
        if many:
            parts.append(self._central(hosts[0], address))
        parts += [self._host(host, address, first=host is hosts[0]) for host in hosts]
        self._parts = parts

    # ------------------------------------------------------------------ parts

    def _part(self, name: str, host: HostConfig, cls: type, *arguments: object) -> _Part:
        resource = places.resource(host, self._first_address)
        return _Part(name, lambda: self._fabric.place(name, cls, *arguments, resource=resource), resource)

    def _controller(self, host: HostConfig) -> _Part:
        remembered = self._remembered
        assert remembered.port is not None
        plan = ControllerPlan(
            config=self._config,
            run_id=remembered.run_id,
            port=remembered.port,
            state=self._memory.folder / remembered.run_id,
            logs=self._logs,
            ledger=self._ledger,
            host=host.name if self._config.hosts else self._config.host,
            cores=tuple(host.cores),
        )
        return self._part(_CONTROLLER, host, ControllerActor, plan)

    def _central(self, host: HostConfig, address: str) -> _Part:
        remembered, file = self._remembered, self._memory.folder / "ledger-tokens.json"
        if remembered.central_port is None:
            remembered.central_port = free_port(address)
        for other in places.hosts(self._config)[1:]:
            if other.name not in remembered.tokens:
                with suppress(LedgerError):  # One that was made, and not remembered.
                    tokens.revoke(file, other.name)
                remembered.tokens[other.name] = tokens.create(file, other.name, append=(f"{other.name}.*",))
        self._memory.write(remembered)
        plan = CentralPlan(
            ledger=self._ledger, host=address, port=remembered.central_port, tokens=file, logs=self._logs
        )
        return self._part(_CENTRAL, host, CentralActor, plan)

    def _host(self, host: HostConfig, first_address: str, *, first: bool) -> _Part:
        remembered = self._remembered
        central = None
        if not first:
            shown = f"[{first_address}]" if ":" in first_address else first_address
            central = Central(url=f"grpc://{shown}:{remembered.central_port}", token=remembered.tokens[host.name])
        plan = HostPlan(
            config=self._config,
            host=host.name,
            run_id=remembered.run_id,
            controller_url=remembered.url,
            address=None if first else host.address,
            central=central,
        )
        return self._part(f"host {host.name}", host, HostActor, plan, *self._make_host.values())

    def _look(self, part: _Part) -> None:
        """Take the answer that has come, ask again, and place anew what is gone for good."""
        try:
            if part.actor is None:
                part.actor = part.place()
            if part.call is None:
                part.call, part.asked_s = part.actor.report.remote(), time.monotonic()
            report = self._fabric.answer(part.call, timeout_s=0.2)
            part.call = None
            part.state = _state(part.name, report)
        except UnreachableError as error:
            late_s = time.monotonic() - part.asked_s
            if "answer" not in str(error):
                part.call = None
            if "answer" not in str(error) or late_s > _ASK_TIMEOUT_S:
                here = part.resource in self._fabric.nodes()
                doing = "does not answer, or is being started" if here else f"waits for its Ray node ({part.resource})"
                self._change(part, PartState(name=part.name, ready=False, doing=doing))
        except PartDiedError as error:
            self._say(f"{part.name} is gone and is placed anew: {str(error).splitlines()[0]}")
            part.actor = part.call = None
            self._change(part, PartState(name=part.name, ready=False, doing="is gone, and is placed anew"))
        except Exception as error:
            part.call = None
            self._change(part, PartState(name=part.name, ready=False, doing=f"{type(error).__name__}: {error}"))

    def _change(self, part: _Part, state: PartState) -> None:
        if state != part.state:
            self._say(f"{state.name}: {state.doing}")
        part.state = state

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        """Hosts first, all at once: their leases, engines and accounts; then the controller, and the ledger's gateway
        once the last events have come."""
        hosts = [part for part in self._parts if part.name.startswith("host ")]
        rest = [part for part in self._parts if part not in hosts]
        calls = {part.name: self._call_stop(part, True) for part in hosts}
        for part in hosts:
            self._finish(part, calls[part.name])
        for part in rest:
            self._finish(part, self._call_stop(part))
        if self._upkeep is not None:
            self._upkeep.stop()
        if self._writer is not None:
            self._writer.record(self._event("ended"))
            self._writer.close()
        self._memory.forget()

    def _call_stop(self, part: _Part, *arguments: object) -> Any:
        return None if part.actor is None else part.actor.stop.remote(*arguments)

    def _finish(self, part: _Part, call: Any) -> None:
        """Wait for a part to stop, and end it: also one that is away now, so that it does not begin again."""
        doing = "stopped"
        if call is not None:
            here = part.resource in self._fabric.nodes()
            try:
                self._fabric.answer(call, _STOP_TIMEOUT_S if here else _ASK_TIMEOUT_S)
            except (UnreachableError, PartDiedError) as error:
                doing = f"was not reached, and was not stopped in order: {str(error).splitlines()[0]}"
            except Exception as error:
                doing = f"stopped with {type(error).__name__}: {error}"
            with suppress(Exception):
                self._fabric.end(part.actor)
        self._say(f"{part.name} {doing}")
        part.state = PartState(name=part.name, ready=False, doing=doing)

    # ------------------------------------------------------------------ the ledger

    @property
    def _ledger(self) -> Path:
        return self._config.ledger.expanduser().resolve()

    @property
    def _logs(self) -> Path:
        return self._memory.folder / "logs"

    def _event(self, action: Literal["started", "ended"]) -> Run:
        host = {
            "cores": psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "platform": os.uname().machine,
        }
        trace = open_trace(self._config.traffic)
        fitted = None if trace is None else fit(trace, self._config.traffic)
        return Run(
            action=action,
            name=self._config.name,
            config_json=recorded_config(self._config),
            host_json=json.dumps(host),
            tags_json=json.dumps(self._config.tags),
            # What `rose traffic` replays on it.
            trace=None if fitted is None else fitted.trace.name,
            trace_keep_share=None if fitted is None else fitted.keep_share,
            trace_length_scale=None if fitted is None else fitted.length_scale,
            trace_output_length_scale=None if fitted is None else fitted.output_length_scale,
            trace_time_scale=None if fitted is None else fitted.time_scale,
        )

    def _say_failed(self, run: jobs.JobRun) -> None:
        if run.status == "failed":
            self._say(run.line())


def _state(name: str, report: object) -> PartState:
    """What a part's own report says."""
    if isinstance(report, HostReport):
        return PartState(name=name, ready=report.ready, doing=report.doing, pid=report.pid, faults=report.faults)
    assert isinstance(report, tuple)
    doing, pid = report
    return PartState(name=name, ready=doing == "", doing=doing, pid=pid)
