"""What a fleet remembers of itself from one start to the next, in one file of its state folder."""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from rose import private_files
from rose.config import FleetConfig
from rose.errors import UserError
from rose.events import Record
from rose.ledger.layout import LedgerError
from rose.runtime.scheduling.runs import answers
from rose.runtime.scheduling.runs import state as run_state
from rose.runtime.scheduling.runs.recorder import end_runs
from rose.runtime.service.places import make_state, state_folder

#: In the state folder of a fleet, on its first host.
FILE = "fleet.json"
#: What it was named before, of the fleet run that ended last.
_ENDED_FILE = "ended.json"
#: The drains of the fleet run that ended last; no host has such a name.
_DRAINS = ".drains"
#: In the state folder of each host: the fleet run that its agents work for.
_HOST_FILE = "run.json"
_TOKEN_FILE = "engines.token"
#: In the state folder of a fleet: locked by the command that starts or ends it.
_LOCK_FILE = "fleet.lock"


@dataclass(slots=True)
class Remembered:
    """A fleet run: from the first `rose up` to a `rose down` that ends it, however often its parts are started in
    between."""

    run_id: str
    url: str = ""
    port: int | None = None
    gateway_token: str | None = None
    #: What the hosts' agents show the controller.
    agent_token: str = ""
    #: What each host but the first sends its events with.
    tokens: dict[str, str] = field(default_factory=dict)
    #: The ledger has heard that the run began.
    recorded: bool = False
    #: Its hosts by name, as they are told to be.
    hosts: list[str] = field(default_factory=list)
    #: What the ledger knows of the fleet file, as JSON.
    config_json: str = ""
    #: What the host of each device that it has, or had, is known by, its name first; nothing for the first host, which
    #: stays that.
    placed: dict[str, list[str]] = field(default_factory=dict)
    #: The names that the host at an address, or of a resource, has had: it may have events of theirs.
    names: dict[str, list[str]] = field(default_factory=dict)
    #: It was put down, and waits for the next start to go on.
    kept: bool = False
    #: The Ray cluster that it is on; empty where that is one of the first host's own, which its folder tells of.
    ray_address: str = ""
    #: It is being put down, and its RL runs are then kept or end.
    ending: Literal["", "keep", "end"] = ""


class MemoryUnreadableError(UserError):
    """What a fleet remembers is there, and cannot be read."""

    exit_code = 1


class FleetMemory:
    """The file, replaced as a whole. It holds secrets: nobody else may read it."""

    def __init__(self, config: FleetConfig) -> None:
        self.folder = state_folder(config)
        self._config = config

    @property
    def logs(self) -> Path:
        """Of the parts of the first host."""
        return self.folder / "logs"

    @contextmanager
    def alone(self, say: Callable[[str], None] | None = None) -> Iterator[bool]:
        """Have the fleet for this command alone. With `say`, another one that has it is waited for, and that is said;
        without, this yields False. Raises OSError."""
        make_state(self.folder)
        with (self.folder / _LOCK_FILE).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if say is None:
                    yield False
                    return
                say(f"another command starts or ends fleet {self._config.name!r}: it is waited for")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield True

    def read(self) -> Remembered | None:
        """What is remembered of the fleet run that goes on; None if none does."""
        return read(self.folder)

    def begin(self) -> Remembered:
        """The fleet run that goes on, or a new one, with the drains of the one before. Raises MemoryUnreadableError,
        StateError if the drains cannot be read, OSError, and UserError if the fleet file no longer fits the run."""
        remembered = self.read()
        if remembered is None:
            former, run_id = _read(self.folder / _ENDED_FILE), self._new_id()
            while former is not None and run_id == former.run_id:  # It ended within this second.
                time.sleep(0.1)
                run_id = self._new_id()
            if former is not None:
                # Before the run is remembered: whoever dies here begins another.
                for drains in (_DRAINS, former.run_id):
                    run_state.hand_on_drains(self.folder / drains, self.folder / run_id)
            remembered = Remembered(run_id=run_id)
            self.write(remembered)
        check_fits(remembered, self._config)
        remembered.agent_token = remembered.agent_token or secrets.token_hex(32)
        remembered.placed |= _placed(self._config.model_dump(mode="json"))
        for host in self._config.hosts:
            for place in filter(None, (host.address, host.resource)):
                if host.name not in (names := remembered.names.setdefault(place, [])):
                    names.append(host.name)
        return remembered

    def _new_id(self) -> str:
        return f"{self._config.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"

    def has_ended(self) -> bool:
        """Whether a fleet run ended on this host, and none goes on."""
        return (self.folder / _ENDED_FILE).exists() and not (self.folder / FILE).exists()

    def write(self, remembered: Remembered) -> None:
        make_state(self.folder)
        private_files.write(self.folder / FILE, json.dumps(asdict(remembered), indent=1))

    def forget(self) -> None:
        """The run has ended. Its name is kept for the next one, which begins with its drains, and of its state what the
        ledger has not heard; a full disk allows it."""
        if (self.folder / FILE).exists():
            with suppress(FileNotFoundError):
                # It began with these.
                shutil.rmtree(self.folder / _DRAINS)
            (self.folder / FILE).replace(self.folder / _ENDED_FILE)
        if (ended := _read(self.folder / _ENDED_FILE)) is None:
            return
        folder = self.folder / ended.run_id
        # No client can ask for a turn of it again.
        shutil.rmtree(folder / answers.FOLDER, ignore_errors=True)
        with suppress(run_state.StateError):
            if _is_recorded(folder):
                run_state.hand_on_drains(folder, self.folder / _DRAINS)
                # Tokens of weight stores are in the rest.
                shutil.rmtree(folder, ignore_errors=True)

    def end_former(self, run_id: str, record: Record) -> None:
        """Record what the ledger refused when the runs before `run_id` ended, and remove their state."""
        for file in self.folder.glob(f"*/{run_state.FILE}"):
            if file.parent.name not in (run_id, _DRAINS):
                # What is refused again stays, and keeps no fleet from its work.
                with suppress(run_state.StateError, LedgerError):
                    end_runs(file.parent, record, file.parent.name)
                    shutil.rmtree(file.parent, ignore_errors=True)


def _is_recorded(folder: Path) -> bool:
    """Whether the ledger has all of the runs in the state in `folder`, if there is one. Raises StateError."""
    if not (folder / run_state.FILE).exists():
        return False
    with closing(run_state.State(folder, run_state.GONE_S)) as state:
        return not state.due() and all(run.state != "open" for run in state.runs())


def read(folder: Path) -> Remembered | None:
    """What the fleet with this state folder remembers of the run that goes on, or is kept; None if there is none here.

    Raises MemoryUnreadableError.
    """
    return _read(folder / FILE)


def _read(file: Path) -> Remembered | None:
    known = {field.name for field in fields(Remembered)}  # A later version may remember more.
    try:
        remembered = Remembered(
            **{name: value for name, value in json.loads(file.read_text()).items() if name in known}
        )
        if not remembered.run_id:
            raise ValueError("run_id is empty")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MemoryUnreadableError(
            f"what the fleet remembers cannot be read from {file}: {error.strerror}; run this as the fleet's user, or "
            "see to the disk"
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise MemoryUnreadableError(
            f"{file}, in which the fleet remembers its run, is damaged ({error}): put back a copy of it, or remove it, "
            "and `rose up` begins another fleet run, without the RL runs and drains of that one"
        ) from None
    return remembered


#: Fields of the fleet file that a fleet run keeps, and why.
_KEPT = {
    ("ledger",): "its events lie there",
    ("rollout", "model"): "its RL runs were opened for it",
}


def check_fits(remembered: Remembered, config: FleetConfig) -> None:
    """Raises UserError if a fleet file was changed in what must stay as it is while a fleet run goes on."""
    if not remembered.config_json:
        return
    before, now = json.loads(remembered.config_json), config.model_dump(mode="json")
    for path, why in _KEPT.items():
        old: Any = before
        new: Any = now
        for name in path:
            old, new = old[name], new[name]
        if old != new:
            raise UserError(
                f"{'.'.join(path)} is {new!r}, and fleet run {remembered.run_id} goes on with {old!r}: {why}. Put "
                "that back; or, to have the new one, start the fleet with the old file and end the run by `rose down`"
            )
    for device_id, host in _placed(now).items():
        # It may have got another name, or another address.
        if (other := remembered.placed.get(device_id, host)) != host and not set(other) & set(host):
            raise UserError(
                f"device {device_id!r} is on {_shown(host)}, and fleet run {remembered.run_id} had it on "
                f"{_shown(other)}: a host knows its own leases alone, and would give out names of theirs. Give it "
                "another id, or put that back; or start the fleet with the old file and end the run by `rose down`"
            )


def _placed(fleet: dict[str, Any]) -> dict[str, list[str]]:
    """As `Remembered.placed`, by a fleet file as JSON."""
    known = {
        host["name"]: [host[by] for by in ("name", "address", "resource") if host.get(by)]
        for host in fleet.get("hosts", [])[1:]
    }
    return {device["id"]: known.get(device.get("host"), []) for device in fleet["device"]}


def _shown(host: list[str]) -> str:
    return repr(host[0]) if host else "the first host"


def engines_token(folder: Path) -> str:
    """What other hosts show to the engines of the host with this folder; made by its one process, and once."""
    file = folder / _TOKEN_FILE
    if not file.exists():
        private_files.write(file, secrets.token_urlsafe(24))
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
    """The fleet run that goes on at the host with this folder; None if none does. Raises MemoryUnreadableError."""
    file = folder / _HOST_FILE
    try:
        return str(json.loads(file.read_text())["run_id"])
    except FileNotFoundError:
        return None
    except OSError as error:
        why = f"{error.strerror}; run this as the fleet's user, or see to the disk"
    except (ValueError, KeyError, TypeError):
        why = "it is damaged; `rose restart HOST` has it written anew"
    raise MemoryUnreadableError(f"which fleet run goes on here cannot be read from {file}: {why}")
