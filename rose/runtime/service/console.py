"""Calls the controller of a fleet over HTTP, and shows its answers as tables."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from rose import private_files
from rose.errors import UserError
from rose.http_calls import authorization
from rose.runtime import places
from rose.runtime.errors import DeploymentError
from rose.runtime.service import local_ray, memory
from rose.runtime.service.fabric import listens
from rose.terminal import styled

if TYPE_CHECKING:
    from rose.config import FleetConfig

_TIMEOUT_S = 10.0


class ControllerClient:
    """Calls the controller. Methods raise DeploymentError if no answer comes, and UserError for a refusal."""

    def __init__(self, url: str, token: str | None = None, *, folder: Path | None = None) -> None:
        if not re.fullmatch(r"https?://[^/?#\s]+/?", url):
            raise UserError(f"--url {url!r} must be the controller's root, such as http://10.0.0.1:30100")
        self.url, self.token, self._folder = url.rstrip("/"), token, folder

    def status(self) -> dict[str, Any]:
        return self._call("/status")

    def drain(self, device_id: str | None, reason: str | None) -> list[str]:
        return list(self._call(f"{_path(device_id)}/drain", {"reason": reason} if reason else {})["drained"])

    def undrain(self, device_id: str | None) -> list[str]:
        return list(self._call(f"{_path(device_id)}/undrain", {})["undrained"])

    def reload(self) -> None:
        self._call("/devices/reload", {})

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", **authorization(self.token)}
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data=data, headers=headers)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            if error.code == 401:
                problem = "refuses this token" if self.token else "needs a token"
                advice = "set --token to `gateway.token` of the fleet file, or to a named token of scope read or admin"
                raise UserError(f"the controller at {self.url} {problem}: {advice}") from None
            raise UserError(f"the controller at {self.url} refuses: {_error(error)}") from None
        except (OSError, ValueError) as error:
            doing = None if self._folder is None else _doing(self._folder)
            advice = doing or "correct the URL, or start the fleet with `rose up`"
            reason = getattr(error, "reason", error)
            raise DeploymentError(f"no controller answers at {self.url} ({reason}): {advice}") from None


def _path(device_id: str | None) -> str:
    return "/devices" if device_id is None else f"/devices/{urllib.parse.quote(device_id, safe='')}"


def find(url: str | None, token: str | None, config: FleetConfig | None) -> ControllerClient:
    """Return a client of the fleet at `url` (default: `config`'s fleet or this host's only fleet). Raises UserError."""
    if url is not None:
        return ControllerClient(url, token or (None if config is None else config.gateway.token))
    if config is not None:
        folders = [places.state_folder(config)]
    else:
        base = private_files.STATE.expanduser()
        folders = sorted(path.parent for path in base.glob(f"*/{memory.FILE}"))
    fleets = [(folder, remembered) for folder in folders if (remembered := memory.read(folder)) is not None]
    if len(fleets) > 1:
        names = ", ".join(folder.name for folder, _ in fleets)
        raise UserError(f"several fleets have a controller on this host ({names}): choose with --config or --url")
    if not fleets or not fleets[0][1].url:
        if config is not None and local_ray.find(folders[0]) is not None:
            raise DeploymentError(f"fleet {config.name!r} has no controller yet: `rose up` shows its progress")
        if config is not None and memory.FleetMemory(config).has_ended():
            raise UserError(f"no fleet {config.name!r} runs here: `rose up` starts it")
        missing = "no fleet has" if config is None else f"fleet {config.name!r} lacks"
        raise UserError(f"{missing} a controller on this host: start it with `rose up`, or give its address by --url")
    (folder, remembered), *_ = fleets
    return ControllerClient(remembered.url, token or remembered.gateway_token, folder=folder)


def _doing(folder: Path) -> str | None:
    remembered, lacking = memory.read(folder), local_ray.ended(folder)
    if remembered is not None and remembered.ending and not lacking:
        return f"fleet {folder.name!r} is ending: `rose up` waits for the end, and starts the fleet again"
    if not lacking:
        return f"fleet {folder.name!r} is starting: `rose up` shows its progress"
    if remembered is None or remembered.kept or remembered.ending:
        return None
    if not remembered.ray_address:
        return f"Ray's {' and '.join(lacking)} ended on this host: `rose up` starts Ray and the controller again"
    if not listens(remembered.ray_address):
        return f"Ray's GCS at {remembered.ray_address} does not answer: start Ray's head again, then run `rose up`"
    return None


def status_view(status: dict[str, Any], url: str) -> RenderableType:
    models = status.get("models") or []
    described = f"{'models' if len(models) > 1 else 'model'} {', '.join(models) or 'any'}"
    title = f"fleet run {status['fleet_run_id'] or '?'}   {described}   {url}"
    parts: list[RenderableType] = [styled(title, "bold")]
    parts += [styled(f"missing: {reason}", "yellow") for reason in status["missing"]]
    if (ray := status.get("ray")) is not None:
        parts.append(styled(ray, "red"))
    late_hosts = [host for host in status.get("hosts", []) if host["waits"] is not None]
    parts += [styled(f"host {host['host']}: {host['waits']}", "yellow") for host in late_hosts]
    several = ("model",) if len(models) > 1 else ()
    names = ("device", "host", "engine", *several, "holds", "turns", "lease", "state")
    devices = _table(*names, wide={"turns", "lease"})
    for device in status["devices"]:
        for number, engine in enumerate(device["engines"] or [None]):
            devices.add_row(
                device["device_id"] if number == 0 else "",
                (device["host"] or "") if number == 0 else "",
                *_engine_cells(engine, device["device_id"], several),
                _state(device) if number == 0 else "",
            )
    parts.append(devices if status["devices"] else styled("no device has reported", "dim"))
    parts.append(_runs_view(status["runs"], several) if status["runs"] else styled("no run is open", "dim"))
    return Group(*parts)


def _runs_view(runs: list[dict[str, Any]], several: tuple[str, ...]) -> Table:
    names = ("run", "team", *several, "state", "version", "step", "queued", "running", "engines", "expires")
    shares = any(run["weight"] != 1 or run["priority"] for run in runs)
    table = _table(*names, *(("weight", "priority") if shares else ()), wide={*names} - {"run", "team", "model"})
    for run in runs:
        table.add_row(
            run["run_id"],
            run["team"] or "",
            *(run[name] for name in several),
            run["state"],
            *("" if run[name] is None else str(run[name]) for name in ("version", "step")),
            str(run["turns_queued"]),
            str(run["turns_in_flight"]),
            str(len(run["engines"])),
            "" if run["expires_in_s"] is None else f"{run['expires_in_s']:.0f} s",
            *((f"{run['weight']:g}", str(run["priority"])) if shares else ()),
        )
    return table


def _engine_cells(engine: dict[str, Any] | None, device_id: str, several: tuple[str, ...]) -> tuple[str, ...]:
    if engine is None:
        return "none", *("" for _ in several), "", "", ""
    weights = f"{engine['run_id']} v{engine['policy_version']}" if engine["run_id"] else "no run's weights"
    if engine["assigned_run_id"] and engine["assigned_run_id"] != engine["run_id"]:
        weights += f", assigned to {engine['assigned_run_id']}"
    elif engine["target_version"] not in (None, engine["policy_version"]):
        weights += f", updating to v{engine['target_version']}"
    if not engine["borrowed"]:
        lease = "dedicated"
    elif engine["lease_id"] is None:
        lease = "none"
    else:
        lease = f"{engine['lease_left_s'] or 0:.1f} s left"
    # The device's state explains the fault.
    away = "" if engine["alive"] else " (away)" if engine.get("fault") else " (dead)"
    name = engine["engine_id"].removeprefix(f"{device_id}-") + away
    name += " (token ids only)" if engine.get("token_ids_only") else ""
    return (
        name,
        *(engine[column] or "" for column in several),
        weights,
        f"{engine['in_flight']}/{engine['capacity']}",
        lease,
    )


def _state(device: dict[str, Any]) -> RenderableType:
    if device["drained"]:
        return styled(device["not_lent"] or "drained", "yellow")
    if device["not_lent"] is None:
        busy = [text for engine in device["engines"] if (text := _beside(engine.get("beside"))) is not None]
        return styled("; ".join(busy) or "turns can run", "green")
    return styled(device["not_lent"], "red" if device["fault"] else "dim")


def _beside(beside: dict[str, Any] | None) -> str | None:
    if beside is None or not (beside["share"] or beside["held_by"]):
        return None
    from rose.runtime.policy.credit import STRETCH_MAX

    text = f"busy, lends {beside['share']:.0%} beside live requests, TPOT +{beside['stretch'] - 1:.0%}"
    if beside["stretch_max"] < STRETCH_MAX:
        text += f" of allowed {beside['stretch_max'] - 1:.0%}"
    return f"{text}; waits: {beside['held_by'].replace('_', ' ')}" if beside["held_by"] else text


def _table(*columns: str, wide: Collection[str]) -> Table:
    """Return a table. On a narrow terminal, columns in `wide` stay on one line, and other columns wrap."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in wide)
    return table


def _error(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"status {error.code}"


def terminal_width() -> int | None:
    return None if os.isatty(1) or "COLUMNS" in os.environ else 160
