"""`rose up` and `rose down`, from where they are typed: what they start goes on without them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rose.config import FleetConfig
from rose.errors import UserError, did_you_mean
from rose.file_limit import raise_file_limit
from rose.runtime import preflight
from rose.runtime.errors import DeploymentError, PartDiedError
from rose.runtime.fleet import recorded_config
from rose.runtime.service import local_ray, memory, places, plan_json
from rose.runtime.service.fabric import Fabric, UnreachableError
from rose.runtime.service.keeper import KEEPER, Keeper
from rose.runtime.service.parts import FleetState, host_part
from rose.runtime.service.plans import CONTROLLER

_LOOK_S = 0.5
_ANSWER_TIMEOUT_S = 60.0
#: Hosts, then the controller, as the keeper waits for them, and its own end.
_STOP_TIMEOUT_S = 180.0
#: A keeper that died is started again by Ray: for so long one that is away is waited for.
_AWAY_S = 60.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Fleet:
    """A fleet whose keeper was found or started."""

    config: FleetConfig
    fabric: Fabric
    keeper: Any
    say: Say

    def ask(self, method: str, *arguments: object) -> Any:
        """What the keeper answers. One that is away is waited for a minute, which is said. Raises DeploymentError if it
        stays away, or is gone for good."""
        until_s: float | None = None
        while True:
            try:
                return self.fabric.ask(self.keeper, method, *arguments, timeout_s=_ANSWER_TIMEOUT_S)
            except (UnreachableError, PartDiedError) as error:
                if until_s is None:
                    until_s = time.monotonic() + _AWAY_S
                    if isinstance(error, UnreachableError):
                        self.say(f"the keeper is away ({error}): it is waited for")
                if isinstance(error, PartDiedError) or time.monotonic() > until_s:
                    raise DeploymentError(
                        f"the keeper of fleet {self.config.name!r} cannot be asked: {str(error).splitlines()[0]}; "
                        f"{places.state_folder(self.config) / 'logs' / 'keeper.log'} on the first host may say why, "
                        "and `rose up` starts it again"
                    ) from None
            time.sleep(_LOOK_S)

    def state(self) -> FleetState:
        """How it is. Raises DeploymentError as `ask`."""
        state: FleetState = self.ask("state")
        return state

    def goes_on(self) -> bool:
        """Whether it was not put down. Raises DeploymentError if it was lost."""
        try:
            return not self.state().stopped
        except DeploymentError:
            remembered = memory.read(places.state_folder(self.config))
            if remembered is None or remembered.kept:
                return False
            raise

    def wait_ready(self, say: Say, tend: Callable[[], None] = lambda: None, *, part: str | None = None) -> FleetState:
        """Return once every part is at work, or the one that is named; says meanwhile what each is at. Raises
        DeploymentError if the fleet is put down instead."""
        shown: dict[str, str] = {}
        while not _is_ready(state := self.state(), part):
            if state.stopped:
                raise DeploymentError(f"fleet {self.config.name!r} was put down: `rose up` starts it again")
            _show(state, shown, say)
            tend()
            time.sleep(_LOOK_S)
        _show(state, shown, say)
        return state


def up(
    config: FleetConfig,
    address: str | None,
    say: Say,
    make_host: dict[str, Any] | None = None,
    *,
    lives_with: int | None = None,
) -> Fleet:
    """Find the fleet that runs, or start it: on the Ray cluster at `address`, which this host is in; left out, where it
    was started, or on one of this host's own.

    `make_host` are further arguments of the hosts' actors. `lives_with` is a process of this host, after whose end,
    however it ends, the fleet goes down by itself. Raises UserError.
    """
    folder = places.state_folder(config)
    remembered = memory.read(folder)
    if remembered is not None:
        memory.check_fits(remembered, config)
    if not config.hosts and (remembered is None or remembered.kept):
        # Of hosts that the file names, each is checked there.
        preflight.check(config)
        if (notice := preflight.notice(config)) is not None:
            say(notice)
    address = address or _ray_address(config)
    if address is None:
        if len(config.hosts) > 1:
            raise _unknown_ray(config)
        say("starting Ray")
        # All parts of the fleet are started by what starts here.
        raise_file_limit()
        address = local_ray.start(folder)
    fabric = _join(config, address, say)
    first = places.hosts(config)[0]
    keeper = fabric.find(KEEPER)
    if keeper is not None and _wait_end(fleet := Fleet(config, fabric, keeper, say)):
        _end_keeper(fleet)
        keeper = None
    if keeper is None:
        resource = places.resource(first, fabric.node_address)
        if resource not in fabric.nodes():
            raise DeploymentError(
                f"no Ray node has {resource!r}, by which host {first.name!r} is known: start Ray there, with "
                f"`ray start --address={address}`, or correct its `address` or `resource`"
            )
        # A host that is known by a resource may be another than this one.
        first_address = first.address or (None if first.resource else fabric.node_address)
        start_id, ray_address = secrets.token_hex(8), "" if local_ray.find(folder) == address else fabric.address
        arguments = (plan_json.dump(config), first_address, make_host, lives_with, start_id, ray_address)
        return Fleet(config, fabric, fabric.place(KEEPER, Keeper, *arguments, resource=resource), say)
    say(f"fleet {config.name!r} runs: what is well is left as it is")
    if not _has_file(fleet):
        say("its fleet file has changed since: `rose down --keep-runs` and up again makes that hold")
    return fleet


def down(config: FleetConfig, address: str | None, say: Say, *, keep_runs: bool = False) -> bool:
    """Put the fleet down, in the order that leaves the ledger whole; a Ray of its own ends with it. Returns whether one
    ran. With `keep_runs` its fleet run does not end, and the next `up` goes on with its RL runs.

    Raises DeploymentError if it does not end, and UserError if this host does not know where a fleet of several is.
    """
    folder = places.state_folder(config)
    address = address or _ray_address(config)
    if address is None:
        local_ray.stop(folder)
        return False
    fabric = _join(config, address, say)
    try:
        keeper = fabric.find(KEEPER)
        if keeper is not None:
            end(Fleet(config, fabric, keeper, say), keep_runs=keep_runs)
    finally:
        fabric.leave()
    # Not of a fleet that is still being put down: that is Ray's to carry until the end.
    local_ray.stop(folder)
    return keeper is not None


def end(fleet: Fleet, *, keep_runs: bool = False) -> None:
    """Put down a fleet that this process knows; its Ray goes on. Raises DeploymentError if it does not end."""
    fleet.ask("stop", keep_runs)
    _wait_stopped(fleet)
    _end_keeper(fleet)


def restart(config: FleetConfig, address: str | None, part: str, say: Say) -> None:
    """Start the process of a host or the controller anew, with what is installed there now.

    Raises UserError.
    """
    hosts = [host.name for host in places.hosts(config)]
    known = [*hosts, CONTROLLER]
    if part not in known:
        raise UserError(
            f"fleet {config.name!r} has no part {part!r}{did_you_mean(part, known)}: give a host's name, or "
            f"`{CONTROLLER}`"
        )
    address = address or _ray_address(config)
    if address is None:
        raise DeploymentError(f"fleet {config.name!r} does not run here: `rose up` starts it")
    fabric = _join(config, address, say)
    try:
        keeper = fabric.find(KEEPER)
        if keeper is None:
            raise DeploymentError(f"fleet {config.name!r} does not run: `rose up` starts it")
        # A host of that name comes first.
        name = host_part(part) if part in hosts else part
        try:
            fabric.ask(keeper, "restart", name, timeout_s=_STOP_TIMEOUT_S)
        except (UnreachableError, PartDiedError) as error:
            raise DeploymentError(
                f"the keeper does not say whether {name} was started anew ({error}): `rose status` shows how it is"
            ) from None
        Fleet(config, fabric, keeper, say).wait_ready(say, part=name)
    finally:
        fabric.leave()


def _ray_address(config: FleetConfig) -> str | None:
    """Where the Ray of a fleet is that was named none: this host's own, or the cluster that it was started on, as its
    first host remembers; None if it runs on neither.

    Raises UserError where that cannot be told from here.
    """
    fleet_memory = memory.FleetMemory(config)
    if (address := local_ray.find(fleet_memory.folder)) is not None:
        return address
    remembered = fleet_memory.read()
    if remembered is not None and remembered.ray_address:
        # That of one host goes on, once it was put down, wherever it is started next.
        return None if remembered.kept and len(config.hosts) < 2 else remembered.ray_address
    if len(config.hosts) > 1 and not fleet_memory.has_ended():
        raise _unknown_ray(config)
    return None


def _unknown_ray(config: FleetConfig) -> UserError:
    return UserError(
        f"fleet {config.name!r} has {len(config.hosts)} hosts: name their Ray cluster by --address, or in "
        "ROSE_RAY_ADDRESS. Its first host alone knows where it was started"
    )


def _join(config: FleetConfig, address: str, say: Say) -> Fabric:
    say(f"joining Ray at {address}")
    fabric = Fabric(places.namespace(config))
    fabric.join(address)
    return fabric


def _has_file(fleet: Fleet) -> bool:
    """Whether the keeper goes by the fleet file as it is now."""
    if fleet.ask("config") != recorded_config(fleet.config):
        return False
    return bool(fleet.ask("has_token", fleet.config.gateway.token))


def _wait_end(fleet: Fleet) -> bool:
    """Whether the fleet was put down, or is being put down: then returns at its end."""
    state = fleet.state()
    if not (state.stopped or state.ending):
        return False
    fleet.say(f"fleet {fleet.config.name!r} is being put down: its end is waited for")
    _wait_stopped(fleet)
    return True


def _wait_stopped(fleet: Fleet) -> None:
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    shown = {part.name: part.doing or "is at work" for part in fleet.state().parts}
    while not (state := fleet.state()).stopped:
        _show(state, shown, fleet.say)
        if time.monotonic() > deadline_s:
            raise DeploymentError(f"fleet {fleet.config.name!r} did not stop within {_STOP_TIMEOUT_S:.0f} s: try again")
        time.sleep(_LOOK_S)
    _show(state, shown, fleet.say)


def _end_keeper(fleet: Fleet) -> None:
    """End the keeper of a fleet that was put down; returns once its name is free."""
    fleet.fabric.end(fleet.keeper)
    deadline_s = time.monotonic() + _AWAY_S
    while fleet.fabric.find(KEEPER) is not None and time.monotonic() < deadline_s:
        time.sleep(0.1)


def _is_ready(state: FleetState, part: str | None) -> bool:
    return state.ready or any(known.ready for known in state.parts if known.name == part)


def _show(state: FleetState, shown: dict[str, str], say: Say) -> None:
    """Say what is new about the parts."""
    for part in state.parts:
        text = part.doing or "; ".join(["is at work", *map(_fault, part.faults.items())])
        if shown.get(part.name) != text:
            shown[part.name] = text
            say(f"{part.name}: {text}")


def _fault(item: tuple[str, str]) -> str:
    name, fault = item
    return fault if fault.startswith(f"{name}: ") else f"{name}: {fault}"
