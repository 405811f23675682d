"""What each part of a fleet is told, and where it is placed."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import Any

from rose.config import FleetConfig, HostConfig
from rose.ledger.hosts import tokens
from rose.ledger.layout import LedgerError
from rose.runtime.engines.ports import free_port
from rose.runtime.service import places, plan_json
from rose.runtime.service.controller import CentralActor, CentralPlan, ControllerActor, ControllerPlan
from rose.runtime.service.fabric import Fabric
from rose.runtime.service.host import HostActor
from rose.runtime.service.memory import FleetMemory, Remembered
from rose.runtime.service.parts import Part, host_part
from rose.runtime.service.places import Central, HostPlan

CONTROLLER = "controller"
#: The gateway of the ledger, of a fleet on several hosts.
CENTRAL = "ledger"


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
        first, *others = self._hosts
        parts = [self._controller(first, remembered)]
        if others:
            parts.append(self._central(first, remembered))
        return parts + [self._host(host, remembered) for host in self._hosts]

    def nowhere(self) -> list[Part]:
        """All parts that there may be, as they are found and not placed."""
        first, *_ = resources = [places.resource(host, self._first_address) for host in self._hosts]
        names = [(CONTROLLER, first), (CENTRAL, first)]
        names += [(host_part(host.name), resource) for host, resource in zip(self._hosts, resources, strict=True)]
        return [Part(name, lambda: None, resource) for name, resource in names]

    @cached_property
    def _central_port(self) -> int:
        # Once, however often this is tried: it is claimed for as long as this process lives.
        return free_port(self.address)

    @property
    def address(self) -> str:
        """Where other hosts find the first one."""
        return self._hosts[0].address or self._first_address

    def _part(self, name: str, host: HostConfig, cls: type, plan: object, *more: object) -> Part:
        resource, text = places.resource(host, self._first_address), plan_json.dump(plan)
        return Part(name, lambda: self._fabric.place(name, cls, text, *more, resource=resource), resource)

    def _controller(self, host: HostConfig, remembered: Remembered) -> Part:
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
            cores=tuple(host.cores),
        )
        return self._part(CONTROLLER, host, ControllerActor, plan)

    def _central(self, host: HostConfig, remembered: Remembered) -> Part:
        file = self._memory.ledger_tokens
        if remembered.central_port is None:
            remembered.central_port = self._central_port
        others = [other.name for other in self._hosts[1:]]
        known = {token.name for token in tokens.read(file)} if file.exists() else set()
        for name in known - set(others):
            if name in remembered.tokens:
                # The fleet file has that host no more.
                tokens.revoke(file, name)
                del remembered.tokens[name]
        for other in self._hosts[1:]:
            name, known_by = other.name, (other.address or "", other.resource or "")
            if name not in remembered.tokens:
                with suppress(LedgerError):  # One that was made, and not remembered.
                    tokens.revoke(file, name)
                former = {had for by in known_by for had in remembered.names.get(by, ())} - set(others)
                append = tuple(f"{writers}.*" for writers in (name, *sorted(former)))
                remembered.tokens[name] = tokens.create(file, name, append=append)
        self._memory.write(remembered)
        plan = CentralPlan(
            ledger=places.ledger(self._config),
            host=self.address,
            port=remembered.central_port,
            tokens=file,
            logs=self._memory.logs,
        )
        return self._part(CENTRAL, host, CentralActor, plan)

    def _host(self, host: HostConfig, remembered: Remembered) -> Part:
        first, central = host is self._hosts[0], None
        if not first:
            shown = f"[{self.address}]" if ":" in self.address else self.address
            central = Central(url=f"grpc://{shown}:{remembered.central_port}", token=remembered.tokens[host.name])
        plan = HostPlan(
            config=self._config,
            host=host.name,
            run_id=remembered.run_id,
            controller_url=remembered.url,
            address=None if first else host.address,
            central=central,
            agent_token=remembered.agent_token,
        )
        return self._part(host_part(host.name), host, HostActor, plan, *self._make_host.values())
