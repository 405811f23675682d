"""The hosts of a fleet, with the devices, plans and folders of each host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rose import private_files
from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.runtime.errors import FolderError
from rose.transfer.wire.origin_rules import OriginRules

if TYPE_CHECKING:  # Importing these takes longer than `rose status` may.
    from rose.config import DeviceConfig, FleetConfig, HostConfig


def hosts(config: FleetConfig) -> list[HostConfig]:
    from rose.config import HostConfig

    return list(config.hosts) or [HostConfig(name=config.host or "local")]


def devices(config: FleetConfig, host: str) -> list[DeviceConfig]:
    first = hosts(config)[0].name
    # With one host, a device's `host` may be missing or equal to it.
    if len(config.hosts) < 2:
        return [device.model_copy(update={"host": first}) for device in config.device] if host == first else []
    return [device for device in config.device if device.host == host]


def hosts_by_device(config: FleetConfig) -> dict[str, str]:
    return {device.id: host.name for host in hosts(config) for device in devices(config, host.name)}


def ledger_host(config: FleetConfig) -> str:
    """Return the first host's name for the ledger's writers. It may be empty in a fleet of one host."""
    return hosts(config)[0].name if config.hosts else config.host


def resource(host: HostConfig, node_address: str) -> str:
    return host.resource or f"node:{host.address or node_address}"


def route(origin: HostConfig, destination: HostConfig) -> str:
    if origin.region != destination.region:
        return "inter-region"
    return "intra-zone" if origin.zone == destination.zone else "inter-zone"


def route_to(config: FleetConfig, host: str, url: str) -> str:
    """Return the kind of route from `host` to a server, for prices. Unknown servers count as if on the first host."""
    by_address = {known.address: known for known in hosts(config)}
    here = next(known for known in hosts(config) if known.name == host)
    return route(here, by_address.get(urlsplit(url).hostname, hosts(config)[0]))


def origin_rules(config: FleetConfig) -> OriginRules:
    return OriginRules(files=config.origins.files, hosts=tuple(config.origins.hosts))


def state_folder(config: FleetConfig) -> Path:
    return config.state.expanduser().absolute() / config.name


def ledger(config: FleetConfig) -> Path:
    """Return the path of the ledger. On hosts other than the first, it is a spool of events for the first host."""
    return config.ledger.expanduser().resolve()


def make_state(folder: Path) -> None:
    try:
        private_files.make(folder)
    except OSError as error:
        raise FolderError(
            f"state: {folder} cannot be created ({error.strerror or error}): set `state` in the fleet file to a folder "
            "that this user can write"
        ) from None


def make_ledger(config: FleetConfig) -> Path:
    """Return the path of the ledger. Make the ledger if it is missing. Raises FolderError."""
    try:
        return layout.create(ledger(config))
    except LedgerError as error:
        raise FolderError(f"ledger: {error}; or set `ledger` in the fleet file to another folder") from None
