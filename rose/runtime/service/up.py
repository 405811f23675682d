"""The commands `rose up`, `down`, `restart` and `reload`. Each also completes the work of a command that was killed."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rose.config import FleetConfig
from rose.errors import UserError, did_you_mean
from rose.http_limits import raise_file_limit
from rose.ledger.writer import LedgerWriter
from rose.runtime import places, preflight
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import DeploymentError, PartDiedError
from rose.runtime.fleet import fleet_event, writer_name
from rose.runtime.host_plan import HostPlan
from rose.runtime.scheduling.runs.recorder import close_runs, record_due
from rose.runtime.service import local_ray, memory, process
from rose.runtime.service.console import find
from rose.runtime.service.controller import ControllerActor, ControllerPlan
from rose.runtime.service.fabric import Fabric, UnreachableError, listens
from rose.runtime.service.host import HostActor
from rose.runtime.service.memory import FleetMemory, Remembered
from rose.runtime.service.process import STOPPING, Report

CONTROLLER = "controller"
_LOOK_S = 0.5
_ANSWER_TIMEOUT_S = 2.0
_STOP_HOST_TIMEOUT_S = 60.0
_AWAY_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str
    cls: type
    arguments: tuple[object, ...]
    resource: str


@dataclass(slots=True)
class Fleet:
    config: FleetConfig
    fabric: Fabric
    remembered: Remembered
    say: Say
    make_host: dict[str, Any] | None = None
    parts: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = _parts(self.config, self.fabric, self.remembered, self.make_host or {})

    @property
    def memory(self) -> FleetMemory:
        return FleetMemory(self.config)

    def reports(self) -> dict[str, Report]:
        actors = ((part, self.fabric.find(part.name)) for part in self.parts)
        calls = [(part, None if actor is None else actor.report.remote()) for part, actor in actors]
        until_s = time.monotonic() + _ANSWER_TIMEOUT_S
        reports = {part.name: self._report(part, call, until_s - time.monotonic()) for part, call in calls}
        if any(call is None or reports[part.name].doing == STOPPING for part, call in calls):
            with self.memory.alone() as alone:
                if alone and self._should_run():
                    self.place()
        return reports

    def place(self) -> None:
        """Place the missing parts, and restart the stopped parts. The caller holds the fleet's lock."""
        for part in self.parts:
            if (actor := self.fabric.find(part.name)) is None:
                self.fabric.place(part.name, part.cls, *part.arguments, resource=part.resource)
            elif self._report(part, actor.report.remote(), _LOOK_S).doing == STOPPING:
                self.say(f"{part.name} was stopped and restarts")
                self.fabric.end(actor, again=True)

    def is_running(self) -> bool:
        """Return whether the fleet runs. If it does, place its missing parts. Raises DeploymentError."""
        until_s = time.monotonic() + _AWAY_S
        while not listens(self.fabric.address):
            if time.monotonic() > until_s:
                raise DeploymentError(f"fleet {self.config.name!r} lost its Ray: `rose up` starts it again")
            time.sleep(_LOOK_S)
        if not self._should_run():
            return False
        self.reports()
        return True

    def wait_ready(self, say: Say, tend: Callable[[], None] = lambda: None, *, part: str | None = None) -> None:
        """Wait until `part` is ready (None: all parts). Raises DeploymentError if the fleet ends meanwhile."""
        last_texts: dict[str, str] = {}
        while True:
            reports = self.reports()
            for name, report in reports.items():
                faults = (text if text.startswith(f"{at}: ") else f"{at}: {text}" for at, text in report.faults.items())
                text = report.doing or "; ".join(["is ready", *faults])
                if last_texts.get(name) != text:
                    last_texts[name] = text
                    say(f"{name}: {text}")
            if all(report.ready for name, report in reports.items() if part in (None, name)):
                return
            if not self._should_run():
                raise DeploymentError(f"fleet {self.config.name!r} has ended: `rose up` starts it again")
            tend()
            time.sleep(_LOOK_S)

    def end(self, *, keep_runs: bool) -> None:
        """End hosts, controller and fleet run. The caller holds the fleet's lock."""
        remembered = self.remembered
        remembered.ending = remembered.ending or ("keep" if keep_runs else "end")
        self._step("the memory of the fleet run", lambda: self.memory.write(remembered))
        controller, *hosts = self.parts
        self._stop(hosts, _STOP_HOST_TIMEOUT_S)
        self._stop([controller], timeout_s=20.0)
        if not remembered.run_id:
            return
        if remembered.ending == "keep":
            remembered.kept, remembered.ending = True, ""
            self._step("the memory of the fleet run", lambda: self.memory.write(remembered))
            return
        self._step("the RL runs", self._close_runs)
        self._step("the event of the end", self._record_end)
        self._step("the memory of the fleet run", self.memory.forget)

    def _close_runs(self) -> None:
        for run_id in close_runs(self.memory.controller, self.remembered.run_id):
            self.say(f"RL run {run_id} is closed")

    def _record_end(self) -> None:
        with _writer(self.config, self.remembered.run_id) as writer:
            record_due(self.memory.controller, writer.record)
            writer.record(fleet_event(self.config, "ended"))

    def _should_run(self) -> bool:
        remembered = self.memory.read()
        return (
            remembered is not None
            and remembered.run_id == self.remembered.run_id
            and not (remembered.kept or remembered.ending)
        )

    def _report(self, part: Part, call: Any, timeout_s: float) -> Report:
        if call is None:
            return Report(doing="waits for its placement")
        try:
            report: Report = self.fabric.answer(call, max(0.0, timeout_s))
            return report
        except UnreachableError:
            here = part.resource in self.fabric.nodes()
            return Report(doing="does not answer, or starts" if here else f"waits for its Ray node ({part.resource})")
        except PartDiedError as error:
            return Report(doing=f"is gone and restarts: {str(error).splitlines()[0]}")

    def _stop(self, parts: list[Part], timeout_s: float) -> None:
        actors = ((part, self.fabric.find(part.name)) for part in parts)
        calls = [(part, actor, actor.stop.remote(True)) for part, actor in actors if actor is not None]
        until_s = time.monotonic() + timeout_s
        for part, actor, call in calls:
            here = part.resource in self.fabric.nodes()
            left_s = until_s - time.monotonic() if here else _ANSWER_TIMEOUT_S
            try:
                undone = self.fabric.answer(call, max(0.0, left_s))
                doing = f"stopped, except {'; '.join(undone)}" if undone else "stopped"
            except (UnreachableError, PartDiedError) as error:
                problem = "was ended before an orderly stop" if here else "could not be reached to stop"
                doing = f"{problem}: {str(error).splitlines()[0]}"
            except Exception as error:
                doing = f"stopped with {type(error).__name__}: {error}"
            self.fabric.end(actor)
            self.say(f"{part.name} {doing}")
        until_s = time.monotonic() + _AWAY_S
        while any(self.fabric.find(part.name) is not None for part, _, _ in calls) and time.monotonic() < until_s:
            time.sleep(0.1)

    def _step(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (OSError, UserError) as error:
            self.say(f"{what}: did not end in order: {type(error).__name__}: {error}")


def up(config: FleetConfig, address: str | None, say: Say, make_host: dict[str, Any] | None = None) -> Fleet:
    """Return the fleet on the Ray at `address`. Start the fleet if it does not run. Raises UserError."""
    fleet_memory = FleetMemory(config)
    remembered = fleet_memory.read()
    if not config.hosts and (remembered is None or remembered.kept):
        # Checks come before any write. Hosts in the file check themselves.
        preflight.check(config)
        if (notice := preflight.notice(config)) is not None:
            say(notice)
    with fleet_memory.alone(say):
        if (remembered := fleet_memory.read()) is not None:
            memory.check_fits(remembered, config)
        address = address or _ray_address(config)
        if address is None:
            if len(config.hosts) > 1:
                raise _unknown_ray(config)
            say("starting Ray")
            raise_file_limit()  # The fleet's parts inherit this limit.
            address = local_ray.start(fleet_memory.folder)
        fabric = _join(config, address, say)
        _check_first_host(config, fabric)
        if remembered is not None and remembered.ending:
            say(f"fleet {config.name!r} was not ended completely: completing that first")
            Fleet(memory.recorded(remembered) or config, fabric, remembered, say).end(keep_runs=False)
            remembered = fleet_memory.read()
        runs = remembered is not None and any(fabric.find(name) is not None for name in _names(config, remembered))
        if remembered is not None and runs:
            say(f"fleet {config.name!r} runs: keeping its healthy parts")
            recorded = memory.recorded(remembered) or config
            if recorded.model_dump_json() != config.model_dump_json():
                say("its fleet file has changed: `rose reload` applies the changes, or names those that need a restart")
            fleet = Fleet(recorded, fabric, remembered, say, make_host)
        else:
            fleet = Fleet(config, fabric, _begin(config, fabric), say, make_host)
        fleet.place()
    return fleet


def down(config: FleetConfig, address: str | None, say: Say, *, keep_runs: bool = False) -> bool:
    """End the fleet, and its Ray if `rose up` started the Ray. Return whether the fleet ran. Raises UserError."""
    fleet_memory = FleetMemory(config)
    ran = False
    with fleet_memory.alone(say):
        address = address or _ray_address(config)
        if address is not None:
            fabric = _join(config, address, say)
            try:
                _check_first_host(config, fabric)
                remembered = fleet_memory.read()
                parts = [name for name in _names(config, remembered) if fabric.find(name) is not None]
                if ran := bool(parts) or (remembered is not None and bool(remembered.ending)):
                    fleet_run = remembered or Remembered(run_id="")
                    Fleet(memory.recorded(fleet_run) or config, fabric, fleet_run, say).end(keep_runs=keep_runs)
            finally:
                fabric.leave()
        local_ray.stop(fleet_memory.folder)
    return ran


def restart(config: FleetConfig, address: str | None, name: str, say: Say) -> None:
    hosts = [host.name for host in places.hosts(config)]
    names = [*hosts, CONTROLLER]
    if name not in names:
        raise UserError(f"fleet {config.name!r} has no part {name!r}{did_you_mean(name, names)}")
    address = address or _ray_address(config)
    fleet_memory = FleetMemory(config)
    remembered = fleet_memory.read()
    if address is None or remembered is None:
        raise DeploymentError(f"fleet {config.name!r} does not run here: start it with `rose up` on its first host")
    fabric = _join(config, address, say)
    try:
        fleet = Fleet(memory.recorded(remembered) or config, fabric, remembered, say)
        part = host_part(name) if name in hosts else name
        with fleet_memory.alone(say):
            if (actor := fabric.find(part)) is None or part not in {known.name for known in fleet.parts}:
                advice = "to change the fleet, run `rose down --keep-runs` and `rose up`"
                raise DeploymentError(f"the running fleet has no {part}: {advice}")
            say(f"{part} restarts")
            try:
                fabric.answer(actor.stop.remote(False), _STOP_HOST_TIMEOUT_S)
            except (UnreachableError, PartDiedError) as error:
                say(f"{part} was ended before an orderly stop: {str(error).splitlines()[0]}")
            finally:
                fabric.end(actor, again=True)
        fleet.wait_ready(say, part=part)
    finally:
        fabric.leave()


def reload(config: FleetConfig, say: Say) -> list[str]:
    fleet_memory = FleetMemory(config)
    with fleet_memory.alone(say):
        remembered = fleet_memory.read()
        if remembered is None or remembered.kept or remembered.ending:
            raise DeploymentError(f"fleet {config.name!r} does not run here: start it with `rose up`")
        recorded = memory.recorded(remembered)
        if recorded is None:
            raise DeploymentError("another ROSE version started this fleet: run `rose down --keep-runs` and `rose up`")
        changes = memory.changes(recorded, config)
        if changes:
            with _writer(config, remembered.run_id) as writer:
                writer.record(fleet_event(config, "started", f"took over {'; '.join(changes)}"))
            remembered.config_json = _without_token(config)
            fleet_memory.write(remembered)
    find(None, None, config).reload()
    return changes


def _without_token(config: FleetConfig) -> str:
    return config.model_dump_json(exclude={"gateway": {"token"}})


def host_part(host: str) -> str:
    return f"host {host}"


def _begin(config: FleetConfig, fabric: Fabric) -> Remembered:
    """Return the fleet run, once it is on disk and in the ledger. Raises UserError."""
    fleet_memory, hosts = FleetMemory(config), places.hosts(config)
    preflight.check_archive(config)
    try:
        remembered = fleet_memory.begin()
        remembered.kept, remembered.ending = False, ""
        remembered.ray_address = fabric.address if local_ray.find(fleet_memory.folder) is None else ""
        remembered.port = config.gateway.port or remembered.port or free_port(config.gateway.host)
        address = hosts[0].address or fabric.node_address
        if len(hosts) == 1:
            address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.gateway.host, config.gateway.host)  # noqa: S104
        address = f"[{address}]" if ":" in address else address
        remembered.url = f"http://{address}:{remembered.port}"
        remembered.gateway_token = config.gateway.token
        # Hosts that left the file lose their token.
        remembered.tokens = {host.name: remembered.tokens.get(host.name) or secrets.token_hex(32) for host in hosts[1:]}
        fleet_memory.write(remembered)
        with _writer(config, remembered.run_id) as writer:
            config_json = _without_token(config)
            if config_json != remembered.config_json:
                reason = "goes on with a changed fleet file" if remembered.config_json else None
                writer.record(fleet_event(config, "started", reason))
        remembered.config_json = config_json
        fleet_memory.write(remembered)
    except OSError as error:
        raise DeploymentError(f"fleet {config.name!r} cannot start: {error}") from None
    return remembered


def _writer(config: FleetConfig, run_id: str) -> LedgerWriter:
    return LedgerWriter.open(places.make_ledger(config), writer_name(places.ledger_host(config), "deployment"), run_id)


def _names(config: FleetConfig, remembered: Remembered | None) -> list[str]:
    hosts = [host.name for host in places.hosts(config)] + ([] if remembered is None else [*remembered.tokens])
    return [CONTROLLER, *map(host_part, dict.fromkeys(hosts))]


def _parts(config: FleetConfig, fabric: Fabric, remembered: Remembered, make_host: dict[str, Any]) -> list[Part]:
    first, *other_hosts = hosts = places.hosts(config)
    controller = ControllerPlan(
        config=config,
        run_id=remembered.run_id,
        port=remembered.port or 0,
        agent_token=remembered.agent_token,
        host_tokens={host.name: remembered.tokens[host.name] for host in other_hosts if host.name in remembered.tokens},
    )
    address = first.address or fabric.node_address
    resource = places.resource(first, address)
    parts = [Part(name=CONTROLLER, cls=ControllerActor, arguments=(process.dump(controller),), resource=resource)]
    for host in hosts:
        plan = HostPlan(
            config=config,
            host=host.name,
            run_id=remembered.run_id,
            controller_url=remembered.url,
            address=None if host is first else host.address,
            ledger_token="" if host is first else remembered.tokens.get(host.name, ""),
            agent_token=remembered.agent_token,
        )
        arguments = (process.dump(plan), *make_host.values())
        resource = places.resource(host, address)
        parts.append(Part(name=host_part(host.name), cls=HostActor, arguments=arguments, resource=resource))
    return parts


def _check_first_host(config: FleetConfig, fabric: Fabric) -> None:
    first = places.hosts(config)[0]
    if (resource := places.resource(first, fabric.node_address)) not in fabric.own_resources():
        problem = f"this host is not {first.name!r}, the first of fleet {config.name!r}: its Ray lacks {resource!r}"
        raise DeploymentError(f"{problem}. Run this on host {first.name!r}, or correct its `address` or `resource`")


def _ray_address(config: FleetConfig) -> str | None:
    """Return the address of the fleet's Ray, or None. Raises UserError if only the first host knows the address."""
    fleet_memory = FleetMemory(config)
    if (address := local_ray.find(fleet_memory.folder)) is not None:
        return address
    if (remembered := fleet_memory.read()) is not None and remembered.ray_address:
        # A one-host fleet may start on another Ray after `rose down`.
        return None if remembered.kept and len(config.hosts) < 2 else remembered.ray_address
    if len(config.hosts) > 1 and not fleet_memory.has_ended():
        raise _unknown_ray(config)
    return None


def _unknown_ray(config: FleetConfig) -> UserError:
    problem = f"fleet {config.name!r} has {len(config.hosts)} hosts: name their Ray by --address"
    return UserError(f"{problem} or in ROSE_RAY_ADDRESS. Only the fleet's first host knows the address")


def _join(config: FleetConfig, address: str, say: Say) -> Fabric:
    say(f"joining Ray at {address}")
    fabric = Fabric(f"rose-{config.name}")
    fabric.join(address)
    remembered = FleetMemory(config).read()
    own_address = local_ray.find(places.state_folder(config))
    address_before = own_address or ("" if remembered is None or remembered.kept else remembered.ray_address)
    if address_before and address_before not in (address, fabric.address) and listens(address_before):
        fabric.leave()
        problem = f"--address {address!r}: fleet {config.name!r} runs on the Ray at {address_before}"
        raise UserError(f"{problem}. Leave out --address, or end the fleet there by `rose down`")
    return fabric
