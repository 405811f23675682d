"""Runs a Ray cluster on this host, also after its starter ends. Whoever has the cluster's token can run programs."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rose import private_files
from rose.runtime import places
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import DeploymentError

if TYPE_CHECKING:
    import psutil

_START_TIMEOUT_S = 120.0
_RECORD, _TOKEN = "ray.json", "ray.token"
_LINK = "ray.folder"  # Link to the folder with Ray's sockets and logs.

_OPTIONS = (
    *("--head", "--port=0", "--include-dashboard=false", "--disable-usage-stats"),
    *("--num-cpus=0", "--no-monitor", "--include-log-monitor=false"),
)

#: Environment of a fleet's Ray, also of one started by hand (docs/fleet.md).
ENVIRONMENT = {
    # Not every user can lower Ray's default of 15.
    "RAY_worker_niceness": "0",
    # With Ray's default of 1000 the kernel would end serving first when memory runs out.
    "RAY_worker_oom_score_adjustment": "0",
    # Otherwise Ray hides GPUs from actors that request none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ROTATION_MAX_BYTES": str(64 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "4",
}


def start(folder: Path) -> str:
    """Start and record a Ray cluster. Return its address. Raises DeploymentError or FolderError."""
    places.make_state(folder)
    stop(folder)
    private_files.write(folder / _TOKEN, secrets.token_hex(32))
    use_token(folder)
    private_files.make_linked(folder / _LINK, Path("/tmp"), "rose-ray-")  # Socket paths have at most 107 characters.
    temporary = _temporary(folder)
    # Another Ray may have the option's default port.
    options = (*_OPTIONS, f"--temp-dir={temporary}", f"--ray-client-server-port={free_port()}")
    command = [str(Path(sys.executable).with_name("ray")), "start", *options]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
            check=False,
            start_new_session=True,  # A closed terminal must not end it.
        )
        output = done.stdout + done.stderr
        if done.returncode == 0:
            address = (temporary / "ray_current_cluster").read_text().strip()
            (folder / _RECORD).write_text(json.dumps({"address": address}))
            return address
    except (OSError, subprocess.TimeoutExpired) as error:
        output = str(error)
    except BaseException:
        stop(folder)
        raise
    stop(folder)
    raise DeploymentError(f"Ray did not start. `{' '.join(command)}` says:\n{output.strip()[-2000:]}")


def find(folder: Path) -> str | None:
    try:
        address: str = json.loads((folder / _RECORD).read_text())["address"]
    except (OSError, ValueError, KeyError):
        return None
    if ended(folder):
        return None
    use_token(folder)
    return address


def ended(folder: Path) -> list[str]:
    return sorted({"gcs_server", "raylet"} - {process.info["name"] for process in _processes(folder)})


def stop(folder: Path) -> None:
    import psutil

    processes = _processes(folder)
    for process in list(processes):
        with suppress(psutil.Error):
            processes += process.children(recursive=True)
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=5.0)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    (folder / _RECORD).unlink(missing_ok=True)
    if private_files.is_private(home := (folder / _LINK).resolve()):
        shutil.rmtree(home, ignore_errors=True)


def use_token(folder: Path) -> None:
    """Make this process send the token of the fleet's Ray. Call this before Ray is imported."""
    if (folder / _TOKEN).exists():
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(folder / _TOKEN)


def _temporary(folder: Path) -> Path:
    # Ray opens its folder to all users, so it is inside a private folder.
    return (folder / _LINK).resolve() / "ray"


def _processes(folder: Path) -> list[psutil.Process]:
    import psutil

    marks, servers = [str(_temporary(folder))], []
    with suppress(OSError, ValueError, KeyError):
        marks.append(f"--address={json.loads((folder / _RECORD).read_text())['address']}")
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if any(name in line for name in marks) and process.uids().real == os.getuid():
                servers.append(process)
    return servers
