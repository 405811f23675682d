"""The plan of a host, which goes to its agents as JSON."""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rose import private_files
from rose.config import FleetConfig
from rose.runtime import places

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPlan:
    """The facts that a host needs to start. The first host needs no `address` and no `ledger_token`."""

    config: FleetConfig
    host: str
    run_id: str
    controller_url: str
    address: str | None = None
    ledger_token: str = field(default="", repr=False)
    agent_token: str = field(default="", repr=False)

    @property
    def own(self) -> FleetConfig:
        """Return the configuration of this host alone. Its field `host` is part of the names of its ledger writers."""
        name = self.host if self.config.hosts else self.config.host
        return self.config.model_copy(
            update={"device": places.devices(self.config, self.host), "host": name, "hosts": []}
        )

    @property
    def state(self) -> Path:
        return places.state_folder(self.config) / self.host

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def ledger(self) -> Path:
        return places.ledger(self.config)

    @property
    def memory(self) -> Path:
        """Return the folder of pages and staged weights. Engines find their page again by the folder's path."""
        return (self.state / "memory").resolve()

    def make_memory(self) -> None:
        home = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        private_files.make_linked(self.state / "memory", home, f"rose-fleet-{self.config.name}-{self.host}-")

    def remove_memory(self) -> None:
        if private_files.is_private(folder := self.memory):
            shutil.rmtree(folder, ignore_errors=True)
