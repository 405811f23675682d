"""What each part of a fleet is told, and where it is placed."""

from __future__ import annotations

import secrets
from typing import Any

from rose.config import FleetConfig, HostConfig
from rose.runtime.service import places, plan_json
from rose.runtime.service.controller import ControllerActor, ControllerPlan
from rose.runtime.service.fabric import Fabric
from rose.runtime.service.host import HostActor
from rose.runtime.service.memory import FleetMemory, Remembered
from rose.runtime.service.parts import Part, host_part
from rose.runtime.service.places import HostPlan

CONTROLLER = "controller"


class Plans:
    """Of the fleet of a file. `first_address` is where its first host is, `make_host` are further arguments of the
    hosts' actors."""

    def __init__(
        self, config: FleetConfig, fabric: Fabric, memory: FleetMemory, first_address: str, make_host: dict[str, Any]
    ) -> None:
        self._config, self._fabric, self._memory = config, fabric, memory
        self._first_address, self._make_host = first_address, make_host
        self._hosts = places.hosts(config)

    def parts(self, remembered: Remembered) -> list[Part]:
        """All parts of a fleet run. What they need to be known by is remembered, and written, first.

        Raises UserError, and OSError if the disk refuses.
        """
        host_tokens = self._host_tokens(remembered)
        return [
            self._controller(self._hosts[0], remembered, host_tokens),
            *(self._host(host, remembered) for host in self._hosts),
        ]

    def nowhere(self) -> list[Part]:
        """All parts that there may be, as they are found and not placed."""
        first, *_ = resources = [places.resource(host, self._first_address) for host in self._hosts]
        names = [(CONTROLLER, first)]
        names += [(host_part(host.name), resource) for host, resource in zip(self._hosts, resources, strict=True)]
        return [Part(name, lambda: None, resource) for name, resource in names]

    @property
    def address(self) -> str:
        """Where other hosts find the first one."""
        return self._hosts[0].address or self._first_address

    def _part(self, name: str, host: HostConfig, cls: type, plan: object, *more: object) -> Part:
        resource, text = places.resource(host, self._first_address), plan_json.dump(plan)
        return Part(name, lambda: self._fabric.place(name, cls, text, *more, resource=resource), resource)

    def _controller(
        self, host: HostConfig, remembered: Remembered, host_tokens: dict[str, tuple[str, tuple[str, ...]]]
    ) -> Part:
        assert remembered.port is not None
        plan = ControllerPlan(
            config=self._config,
            run_id=remembered.run_id,
            port=remembered.port,
            state=self._memory.folder / remembered.run_id,
            logs=self._memory.logs,
            ledger=places.ledger(self._config),
            host=host.name if self._config.hosts else self._config.host,
            agent_token=remembered.agent_token,
            host_tokens=host_tokens,
            cores=tuple(host.cores),
        )
        return self._part(CONTROLLER, host, ControllerActor, plan)

    def _host_tokens(self, remembered: Remembered) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Of each host but the first its token, and the names that it has and had. A host that the fleet file has no
        more has none."""
        names = {host.name for host in self._hosts}
        others = self._hosts[1:]
        remembered.tokens = {host.name: remembered.tokens.get(host.name) or secrets.token_hex(32) for host in others}
        self._memory.write(remembered)
        former = {
            host.name: {
                name for place in (host.address, host.resource) if place for name in remembered.names.get(place, ())
            }
            for host in others
        }
        return {name: (token, (name, *sorted(former[name] - names))) for name, token in remembered.tokens.items()}

    def _host(self, host: HostConfig, remembered: Remembered) -> Part:
        first = host is self._hosts[0]
        plan = HostPlan(
            config=self._config,
            host=host.name,
            run_id=remembered.run_id,
            controller_url=remembered.url,
            address=None if first else host.address,
            ledger_token="" if first else remembered.tokens[host.name],
            agent_token=remembered.agent_token,
        )
        return self._part(host_part(host.name), host, HostActor, plan, *self._make_host.values())
