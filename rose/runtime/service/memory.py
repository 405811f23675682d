"""What a fleet remembers of itself from one start to the next, in one file of its state folder."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rose import secret_file
from rose.config import FleetConfig
from rose.runtime.service.places import state_folder

#: In the state folder of a fleet, on its first host.
FILE = "fleet.json"
#: In the state folder of each host: the fleet run that its agents work for.
_HOST_FILE = "run.json"
_TOKEN_FILE = "engines.token"


@dataclass(slots=True)
class Remembered:
    """A fleet run: from the first `rose up` to `rose down`, however often its parts are started in between."""

    run_id: str
    url: str = ""
    port: int | None = None
    gateway_token: str | None = None
    #: Of the ledger's gateway, and the secrets of the hosts there.
    central_port: int | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    #: The ledger has heard that the run began.
    recorded: bool = False
    #: Its hosts by name, as they are told to be.
    hosts: list[str] = field(default_factory=list)
    stopping: bool = False


class FleetMemory:
    """The file, replaced as a whole. It holds secrets: nobody else may read it."""

    def __init__(self, config: FleetConfig) -> None:
        self.folder = state_folder(config)
        self._name = config.name

    def read(self) -> Remembered | None:
        """What is remembered of the fleet run that goes on; None if none does."""
        return read(self.folder)

    def begin(self) -> Remembered:
        """The fleet run that goes on, or a new one."""
        remembered = self.read()
        if remembered is None:
            remembered = Remembered(run_id=f"{self._name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
            self.write(remembered)
        return remembered

    def write(self, remembered: Remembered) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret_file.write(self.folder / FILE, json.dumps(asdict(remembered), indent=1))

    def forget(self) -> None:
        """The run has ended."""
        (self.folder / FILE).unlink(missing_ok=True)


def read(folder: Path) -> Remembered | None:
    """What the fleet with this state folder remembers; None if none has its controller here, or it is another's."""
    try:
        return Remembered(**json.loads((folder / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def engines_token(folder: Path) -> str:
    """What other hosts show to the engines of the host with this folder; made by its one process, and once."""
    file = folder / _TOKEN_FILE
    if not file.exists():
        secret_file.write(file, secrets.token_urlsafe(24))
    return file.read_text()


def note_run(folder: Path, run_id: str | None) -> None:
    """Remember in a host's folder which fleet run goes on there; None: none does any more."""
    file = folder / _HOST_FILE
    if run_id is None:
        file.unlink(missing_ok=True)
        return
    partial = folder / f".{_HOST_FILE}.partial"
    partial.write_text(json.dumps({"run_id": run_id}))
    partial.replace(file)


def run_at(folder: Path) -> str | None:
    """The fleet run that goes on at the host with this folder."""
    try:
        return str(json.loads((folder / _HOST_FILE).read_text())["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
