"""The hosts of a fleet: which devices each has, what it is told, and where its files lie."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rose import private_files
from rose.config import DeviceConfig, FleetConfig, HostConfig
from rose.ledger import layout
from rose.ledger.layout import LedgerError
from rose.runtime.errors import FolderError
from rose.runtime.transfer.wire.origin_rules import OriginRules

_SHARED_MEMORY = Path("/dev/shm")


def hosts(config: FleetConfig) -> list[HostConfig]:
    """The fleet's hosts, the first with its controller and ledger; one where the file names none."""
    return list(config.hosts) or [HostConfig(name=config.host or "local")]


def devices(config: FleetConfig, host: str) -> list[DeviceConfig]:
    """The devices on a host, each with its host's name."""
    first = hosts(config)[0].name
    # With one host none need name it, and one that does may say what `host` says.
    if len(config.hosts) < 2:
        return [device.model_copy(update={"host": first}) for device in config.device] if host == first else []
    return [device for device in config.device if device.host == host]


def hosts_by_device(config: FleetConfig) -> dict[str, str]:
    """The name of each device's host."""
    return {device.id: host.name for host in hosts(config) for device in devices(config, host.name)}


def resource(host: HostConfig, node_address: str) -> str:
    """What a Ray node has that is this host, and no other: it has it again when it comes back. `node_address`: where
    the host is if the file does not say."""
    return host.resource or f"node:{host.address or node_address}"


def route(one: HostConfig, other: HostConfig) -> str:
    """The priced route between two hosts, by their zones and regions. Where nothing is said they are near."""
    if one.region != other.region:
        return "inter-region"
    return "intra-zone" if one.zone == other.zone else "inter-zone"


def route_to(config: FleetConfig, host: str, url: str) -> str:
    """The priced route between a host and a server, by the address of the server's host; one that the fleet file does
    not know by its address is taken to be where the first host is."""
    by_address = {known.address: known for known in hosts(config)}
    here = next(known for known in hosts(config) if known.name == host)
    return route(here, by_address.get(urlsplit(url).hostname, hosts(config)[0]))


def origin_rules(config: FleetConfig) -> OriginRules:
    """Return where the fleet's versions may be published."""
    return OriginRules(files=config.origins.files, hosts=tuple(config.origins.hosts))


def namespace(config: FleetConfig) -> str:
    """The Ray namespace of the fleet's actors."""
    return f"rose-{config.name}"


def state_folder(config: FleetConfig) -> Path:
    """What a fleet remembers, on each of its hosts; on the first one, its controller's state and where it is."""
    return config.state.expanduser().absolute() / config.name


def ledger(config: FleetConfig) -> Path:
    """The fleet's ledger on its first host; on each other one, the spool of what it sends there."""
    return config.ledger.expanduser().resolve()


def make_state(folder: Path) -> None:
    """Make a folder that is in the fleet's `state`, for this user alone. Raises FolderError."""
    try:
        private_files.make(folder)
    except OSError as error:
        raise FolderError(
            f"state: {folder} cannot be made ({error.strerror or error}): set `state` in the fleet file to a folder "
            "that this user may write to"
        ) from None


def make_ledger(config: FleetConfig) -> Path:
    """Make `ledger` if it is not there, and return it. Raises FolderError."""
    try:
        return layout.create(ledger(config))
    except LedgerError as error:
        raise FolderError(f"ledger: {error}; or set `ledger` in the fleet file to another folder") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPlan:
    """What a host is told: the fleet's configuration, which of its hosts it is, and where the others are.

    `address`: where its engines are reached from the controller's host; None on that host itself. `ledger_token`: what
    it sends its events to the controller with; empty where the ledger folder is the ledger, and no spool.
    """

    config: FleetConfig
    host: str
    run_id: str
    controller_url: str
    address: str | None = None
    ledger_token: str = field(default="", repr=False)
    #: What the host's agents show the controller.
    agent_token: str = field(default="", repr=False)

    @property
    def own(self) -> FleetConfig:
        """The configuration with this host's devices alone, and its name before those of its writers."""
        named = self.host if self.config.hosts else self.config.host
        return self.config.model_copy(update={"device": devices(self.config, self.host), "host": named, "hosts": []})

    @property
    def state(self) -> Path:
        return state_folder(self.config) / self.host

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def ledger(self) -> Path:
        return ledger(self.config)

    @property
    def memory(self) -> Path:
        """The folder for pages and staged weights; it is there after `make_memory`. Engines find their page again
        whoever started them, and when."""
        return self._memory.resolve()

    @property
    def _memory(self) -> Path:
        return self.state / "memory"

    def make_memory(self) -> None:
        """Make `memory`, or find the one that a former process of the host made. Raises OSError."""
        home = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        private_files.make_linked(self._memory, home, f"rose-fleet-{self.config.name}-{self.host}-")

    def remove_memory(self) -> None:
        """Remove `memory`; the next one has its name."""
        if private_files.is_private(folder := self.memory):
            shutil.rmtree(folder, ignore_errors=True)
