"""Keeps the state of a fleet between starts, in one file in its state folder."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rose import private_files
from rose.errors import UserError
from rose.ledger.files import layout
from rose.runtime.places import hosts_by_device, make_state, state_folder

if TYPE_CHECKING:
    from rose.config import FleetConfig
    from rose.runtime.scheduling.messages import Terms

FILE = "fleet.json"  # In a fleet's state folder on its first host.


@dataclass(slots=True)
class Remembered:
    """A fleet run, which lasts from the first `rose up` to the final `rose down`."""

    run_id: str
    url: str = ""
    port: int | None = None
    gateway_token: str | None = None
    agent_token: str = ""
    tokens: dict[str, str] = field(default_factory=dict)  # By host, except the first: the secret for its events.
    config_json: str = ""  # The fleet file as recorded in the ledger, as JSON; empty: not recorded yet.
    placed: dict[str, str] = field(default_factory=dict)  # Host of each present or former device.
    kept: bool = False
    ray_address: str = ""  # Address of its Ray cluster; empty: the first host's own Ray.
    ending: Literal["", "keep", "end"] = ""  # Set during `rose down`: keep or end its RL runs.
    ended: bool = False


class MemoryUnreadableError(UserError):
    exit_code = 1


class FleetMemory:
    """The file of a fleet run. It contains secrets, so only its user can read it."""

    def __init__(self, config: FleetConfig) -> None:
        self.folder = state_folder(config)
        self._config = config

    @property
    def controller(self) -> Path:
        """Return the controller's folder. No host's folder can have the same name."""
        return self.folder / ".controller"

    @contextmanager
    def alone(self, say: Callable[[str], None] | None = None) -> Iterator[bool]:
        """Lock the fleet and yield True. While another command has the lock, wait, or yield False if `say` is None."""
        make_state(self.folder)
        lock = self.folder / "fleet.lock"
        if layout.is_locked(lock):
            if say is None:
                yield False
                return
            say(f"waiting for another command that starts or ends fleet {self._config.name!r}")
        with layout.locked(lock):
            yield True

    def read(self) -> Remembered | None:
        return read(self.folder)

    def begin(self) -> Remembered:
        """Return the open fleet run, or a new one. Raises UserError or OSError."""
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
        remembered = _read(self.folder / FILE)
        return remembered is not None and remembered.ended

    def write(self, remembered: Remembered) -> None:
        make_state(self.folder)
        private_files.write(self.folder / FILE, json.dumps(asdict(remembered), indent=1))

    def forget(self) -> None:
        """End the fleet run. Keep its name, because no later fleet run may have the same name."""
        if (remembered := self.read()) is not None:
            self.write(Remembered(run_id=remembered.run_id, ended=True))


def read(folder: Path) -> Remembered | None:
    remembered = _read(folder / FILE)
    return None if remembered is None or remembered.ended else remembered


def _read(file: Path) -> Remembered | None:
    names = {field.name for field in fields(Remembered)}
    try:
        remembered = Remembered(**{name: v for name, v in json.loads(file.read_text()).items() if name in names})
        if not remembered.run_id:
            raise ValueError("run_id is empty")
    except FileNotFoundError:
        return None
    except OSError as error:
        advice = "run this as the fleet's user, or check the disk"
        raise MemoryUnreadableError(f"cannot read the fleet's state {file}: {error.strerror}; {advice}") from None
    except (ValueError, TypeError, AttributeError) as error:
        advice = "restore a copy, or remove it: then `rose up` starts a new fleet run, without the earlier RL runs"
        raise MemoryUnreadableError(f"the fleet's state {file} is damaged ({error}): {advice}") from None
    return remembered


def check_fits(remembered: Remembered, config: FleetConfig) -> None:
    """Raise UserError if the fleet file changes a setting that is fixed for this fleet run."""
    if not remembered.config_json:
        return
    recorded_file, now = json.loads(remembered.config_json), config.model_dump(mode="json")
    old_models, models = _models(recorded_file), _models(now)
    gone = {table: model for table, model in old_models.items() if model not in models.values()}
    for name, old, new, why in (
        ("ledger", recorded_file["ledger"], now["ledger"], "its events are there"),
        *((f"{table}.model", old, models.get(table), "its RL runs use it") for table, old in gone.items()),
    ):
        if old != new:
            problem = f"{name} is {new!r}, but fleet run {remembered.run_id} has {old!r}: {why}. Restore {name}"
            advice = "To end that fleet run instead, put the old file back, then run `rose up` and `rose down`"
            raise UserError(f"{problem}. {advice}")
    for device_id, host in hosts_by_device(config).items():
        if (old_host := remembered.placed.get(device_id, host)) != host:
            problem = f"device {device_id!r} is on host {host!r}, but fleet run {remembered.run_id} has {old_host!r}"
            advice = "Give the device another id, restore the host, or run `rose up` and `rose down` with the old file"
            raise UserError(f"{problem}: new leases could get the names of old leases. {advice}")


#: Settings that running agents adopt, by table. Other settings size engines, or fix windows drawn before.
_ADOPTED = {
    "serving": ("ttft_budget_ms", "tpot_budget_ms", "classes", "max_prompt_tokens"),
    "coserving": ("high_watermark", "lease_ttl_s", "heartbeat_s", "regret_share", "stretch", "slack_share"),
}


def recorded(remembered: Remembered) -> FleetConfig | None:
    """Return the fleet file of the fleet run, or None if this version of ROSE cannot read it."""
    from rose.config import FleetConfig

    with suppress(ValueError, KeyError):
        file = json.loads(remembered.config_json)
        file["gateway"]["token"] = remembered.gateway_token
        return FleetConfig.model_validate(file)
    return None


def changes(recorded_config: FleetConfig, now: FleetConfig) -> list[str]:
    """Return the changed settings with old and new values. Raises UserError if a change needs a restart."""
    old, new = (dict(_settings(config.model_dump(mode="json"))) for config in (recorded_config, now))
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if fixed := [name for name in changed if not _is_adopted(name)]:
        settings = (_difference(name, old.get(name), new.get(name)) for name in fixed)
        advice = "Type `rose down --keep-runs` and `rose up`, or restore them"
        raise UserError(f"nothing changed: these settings need a restart: {'; '.join(settings)}. {advice}")
    return [f"{name}: {old[name]!r} -> {new[name]!r}" for name in changed]


def terms(config: FleetConfig) -> dict[str, Terms]:
    from rose.runtime.scheduling.messages import Terms

    coserving = config.coserving.model_dump(include=set(_ADOPTED["coserving"]))
    serving = {device.id: config.serving_on(device) for device in config.device if device.pool == "serving"}
    return {
        device_id: Terms(**{name: getattr(table, name) for name in _ADOPTED["serving"]}, coserving=coserving)
        for device_id, table in serving.items()
    }


def _difference(name: str, old: Any, now: Any) -> str:
    """Return a setting's name, and its values if they are numbers. Values that are texts may be secret."""
    numbers = isinstance(old, int | float) and isinstance(now, int | float)
    return f"{name} is {now}, but the fleet has {old}" if numbers else name


def _is_adopted(name: str) -> bool:
    table, _, field = name.rpartition(".")
    table = "serving" if table.startswith("serving_models.") else table
    return field in _ADOPTED.get(table, ())


def _settings(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _models(config: dict[str, Any]) -> dict[str, str]:
    more_models = {f"rollout_models.{name}": table["model"] for name, table in config.get("rollout_models", {}).items()}
    return {"rollout": config["rollout"]["model"], **more_models}


def engines_token(folder: Path) -> str:
    """Return the token that other hosts send to the engines of this host."""
    file = folder / "engines.token"
    if not file.exists():
        private_files.write(file, secrets.token_urlsafe(24))
    return file.read_text()
