"""State that a fleet keeps between starts, in one file of its state folder."""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rose import private_files
from rose.config import FleetConfig
from rose.errors import UserError
from rose.runtime.places import hosts_by_device, make_state, state_folder

if TYPE_CHECKING:
    from rose.runtime.scheduling.messages import Terms

FILE = "fleet.json"  # In a fleet's state folder, on its first host.


@dataclass(slots=True)
class Remembered:
    """A fleet run: from the first `rose up` to the `rose down` that ends it, across restarts of its parts."""

    run_id: str
    url: str = ""
    port: int | None = None
    gateway_token: str | None = None
    agent_token: str = ""
    tokens: dict[str, str] = field(default_factory=dict)  # By host, except the first: the secret of its events.
    recorded: bool = False
    config_json: str = ""  # The fleet file as recorded in the ledger, JSON.
    placed: dict[str, str] = field(default_factory=dict)  # Host of each device, including former devices.
    kept: bool = False
    ray_address: str = ""  # Address of its Ray cluster; empty for the first host's own Ray.
    ending: Literal["", "keep", "end"] = ""  # Set while it is put down: whether its RL runs are kept or ended.
    ended: bool = False


class MemoryUnreadableError(UserError):
    exit_code = 1


class FleetMemory:
    """The file has secrets: it is replaced as a whole, and only its user can read it."""

    def __init__(self, config: FleetConfig) -> None:
        self.folder = state_folder(config)
        self._config = config

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def controller(self) -> Path:
        """Return the controller's folder for all fleet runs. No host can have its name."""
        return self.folder / ".controller"

    @contextmanager
    def alone(self, say: Callable[[str], None] | None = None) -> Iterator[bool]:
        """Lock the fleet; with `say` wait for another command, without it yield False. Raises OSError."""
        make_state(self.folder)
        with (self.folder / "fleet.lock").open("a") as lock:
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
        """Return the open or kept fleet run, if any. Raises MemoryUnreadableError."""
        return read(self.folder)

    def begin(self) -> Remembered:
        """Return the open or a new fleet run. Raises UserError if the file does not fit it, OSError."""
        if (remembered := _read(self.folder / FILE)) is None or remembered.ended:
            former = "" if remembered is None else remembered.run_id
            while (run_id := f"{self._config.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}") == former:
                time.sleep(0.1)  # The last run ended within this second.
            remembered = Remembered(run_id=run_id)
            self.write(remembered)
        check_fits(remembered, self._config)
        remembered.agent_token = remembered.agent_token or secrets.token_hex(32)
        remembered.placed |= hosts_by_device(self._config)
        return remembered

    def has_ended(self) -> bool:
        """Return whether the last fleet run on this host ended. Raises MemoryUnreadableError."""
        remembered = _read(self.folder / FILE)
        return remembered is not None and remembered.ended

    def write(self, remembered: Remembered) -> None:
        make_state(self.folder)
        private_files.write(self.folder / FILE, json.dumps(asdict(remembered), indent=1))

    def forget(self) -> None:
        """End the run, and keep its name, which the next run must not have."""
        if (remembered := self.read()) is not None:
            self.write(Remembered(run_id=remembered.run_id, ended=True))


def read(folder: Path) -> Remembered | None:
    """Return the open or kept fleet run in this state folder, if any. Raises MemoryUnreadableError."""
    remembered = _read(folder / FILE)
    return None if remembered is None or remembered.ended else remembered


def _read(file: Path) -> Remembered | None:
    known = {field.name for field in fields(Remembered)}  # A later version may have more fields.
    try:
        remembered = Remembered(**{name: v for name, v in json.loads(file.read_text()).items() if name in known})
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
            "and `rose up` begins another fleet run, without the RL runs of that one"
        ) from None
    return remembered


def check_fits(remembered: Remembered, config: FleetConfig) -> None:
    """Raises UserError if the fleet file changed a setting that must stay while a fleet run is open."""
    if not remembered.config_json:
        return
    before, now = json.loads(remembered.config_json), config.model_dump(mode="json")
    old_models, models = _models(before), _models(now)
    gone = {table: model for table, model in old_models.items() if model not in models.values()}
    for name, old, new, why in (
        ("ledger", before["ledger"], now["ledger"], "its events lie there"),
        *((f"{table}.model", old, models.get(table), "its RL runs were opened for it") for table, old in gone.items()),
    ):
        if old != new:
            raise UserError(
                f"{name} is {new!r}, and fleet run {remembered.run_id} goes on with {old!r}: {why}. Put "
                "that back; or, to have the new one, start the fleet with the old file and end the run by `rose down`"
            )
    for device_id, host in hosts_by_device(config).items():
        if (other := remembered.placed.get(device_id, host)) != host:
            raise UserError(
                f"device {device_id!r} is on host {host!r}, and fleet run {remembered.run_id} had it on {other!r}: a "
                "host knows its own leases alone, and would give out names of theirs. Give it another id, or put that "
                "back; or start the fleet with the old file and end the run by `rose down`"
            )


#: What agents take over as they run, by table. Windows of withheld leases are drawn before they begin. `headroom` and
#: `compute_share` size a GPU's engines at their start, and other settings decide what is started.
_TAKEN_OVER = {
    "serving": ("ttft_budget_ms", "tpot_budget_ms", "classes", "max_prompt_tokens"),
    "coserving": ("high_watermark", "lease_ttl_s", "heartbeat_s", "regret_share", "stretch", "slack_share"),
}


def recorded(remembered: Remembered) -> FleetConfig | None:
    """Return the fleet file that the fleet run goes by; None if this version cannot read it."""
    try:
        file = json.loads(remembered.config_json)
        file["gateway"]["token"] = remembered.gateway_token
        return FleetConfig.model_validate(file)
    except (ValueError, KeyError):
        return None


def changes(before: FleetConfig, now: FleetConfig) -> list[str]:
    """Return the changed settings, each with its values. Raises UserError if one needs a restart."""
    old, new = _settings(before), _settings(now)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if fixed := [name for name in changed if not _is_taken_over(name)]:
        named = (_difference(name, old.get(name), new.get(name)) for name in fixed)
        raise UserError(
            f"these settings change with a restart only, and nothing was changed: {'; '.join(named)}. Type `rose down "
            "--keep-runs` and `rose up`, or restore them"
        )
    return [f"{name}: {old[name]!r} -> {new[name]!r}" for name in changed]


def terms(config: FleetConfig) -> dict[str, Terms]:
    """Return by serving device what its agent takes over."""
    from rose.runtime.scheduling.messages import Terms

    coserving = config.coserving.model_dump(include=set(_TAKEN_OVER["coserving"]))
    return {
        device.id: Terms(
            **{name: getattr(config.serving_on(device), name) for name in _TAKEN_OVER["serving"]}, coserving=coserving
        )
        for device in config.device
        if device.pool == "serving"
    }


def _difference(name: str, before: Any, now: Any) -> str:
    """Return a setting's name, and its values if they are numbers: texts may hold a secret."""
    numbers = isinstance(before, int | float) and isinstance(now, int | float)
    return f"{name} is {now}, and the fleet has {before}" if numbers else name


def _is_taken_over(name: str) -> bool:
    table, _, field = name.rpartition(".")
    table = "serving" if table.startswith("serving_models.") else table
    return field in _TAKEN_OVER.get(table, ())


def _settings(config: FleetConfig) -> dict[str, Any]:
    """Return the settings by path, such as `serving.ttft_budget_ms`."""
    found: dict[str, Any] = {}
    left = list(config.model_dump(mode="json").items())
    while left:
        name, value = left.pop(0)
        if isinstance(value, dict):
            left += [(f"{name}.{field}", inner) for field, inner in value.items()]
        else:
            found[name] = value
    return found


def _models(config: dict[str, Any]) -> dict[str, str]:
    """Return the rollout models of a fleet file as JSON, by table."""
    others = {f"rollout_models.{name}": table["model"] for name, table in config.get("rollout_models", {}).items()}
    return {"rollout": config["rollout"]["model"], **others}


def engines_token(folder: Path) -> str:
    """Return the token that other hosts show to this host's engines; the host's one process makes it once."""
    file = folder / "engines.token"
    if not file.exists():
        private_files.write(file, secrets.token_urlsafe(24))
    return file.read_text()
