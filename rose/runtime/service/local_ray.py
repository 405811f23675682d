"""A Ray of one host's own, for a fleet that is given none to join: it goes on when the command that started it ends.

Who knows its token may run programs on it, so it has one that is in a file of this user's alone.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from rose import private_files
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import DeploymentError
from rose.runtime.service import places

_START_TIMEOUT_S = 120.0
_STOP_GRACE_S = 5.0
_RECORD, _TOKEN = "ray.json", "ray.token"
#: Leads to the folder with Ray's sockets and logs.
_LINK = "ray.folder"
#: Paths of sockets have room for 107 characters.
_TEMPORARY = Path("/tmp")

#: What actors and their hosts need of a Ray; whoever starts one by hand sets it there (see docs/fleet.md).
ENVIRONMENT = {
    # Actors have a niceness of their own; Ray would start them with 15, from which not everybody may go back.
    "RAY_worker_niceness": "0",
    # An actor's would be 1000, and so that of serving that ROSE starts: the first to go when memory runs out.
    "RAY_worker_oom_score_adjustment": "0",
    # It would hide the GPUs from actors that ask it for none, and with them from the engines that they start.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Logs of 64 MB at most, four of each.
    "RAY_ROTATION_MAX_BYTES": str(64 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "4",
}


def start(folder: Path) -> str:
    """Start a Ray that remembers itself in `folder`, and return its address. Raises DeploymentError with its output,
    FolderError."""
    places.make_state(folder)
    # What is left of one whose raylet or head died has the folder that is deleted below.
    stop(folder)
    private_files.write(folder / _TOKEN, secrets.token_hex(32))
    use_token(folder)
    private_files.make_linked(folder / _LINK, _TEMPORARY, "rose-ray-")
    temporary = _temporary(folder)
    # The logs of the one before were kept until now.
    shutil.rmtree(temporary, ignore_errors=True)
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--port=0",
        f"--temp-dir={temporary}",
        "--include-dashboard=false",
        # It cannot be left out; its usual port may be another Ray's.
        f"--ray-client-server-port={free_port()}",
        "--disable-usage-stats",
        # Actors ask for no CPU; Ray would start an idle worker for each.
        "--num-cpus=0",
        # Nothing scales, and logs stay in their files.
        "--no-monitor",
        "--include-log-monitor=false",
    ]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
            check=False,
            # A terminal that is closed ends what was started from it.
            start_new_session=True,
        )
        output = done.stdout + done.stderr
        if done.returncode == 0:
            address = (temporary / "ray_current_cluster").read_text().strip()
            (folder / _RECORD).write_text(json.dumps({"address": address}))
            return address
    except (OSError, subprocess.TimeoutExpired) as error:
        output = str(error)
    except BaseException:
        # Whoever gives up waiting, as with Ctrl-C, is to leave nothing behind.
        stop(folder)
        raise
    stop(folder)
    raise DeploymentError(f"Ray did not start. `{' '.join(command)}` says:\n{output.strip()[-2000:]}")


def find(folder: Path) -> str | None:
    """The address of the Ray that was started with this folder, if it runs."""
    try:
        address: str = json.loads((folder / _RECORD).read_text())["address"]
    except (OSError, ValueError, KeyError):
        return None
    names = {_name(process) for process in _processes(folder)}
    if not {"gcs_server", "raylet"} <= names:
        return None
    use_token(folder)
    return address


def stop(folder: Path) -> None:
    """End the Ray that was started with this folder, and every process on it. Others on this host go on."""
    processes = _processes(folder)
    for process in list(processes):
        with suppress(psutil.Error):
            processes += process.children(recursive=True)
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(processes, _STOP_GRACE_S)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    (folder / _RECORD).unlink(missing_ok=True)


def use_token(folder: Path) -> None:
    """Have this process's Ray send the token of this folder's, if it has one: to be called before Ray is imported."""
    if (folder / _TOKEN).exists():
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(folder / _TOKEN)


def _temporary(folder: Path) -> Path:
    # Ray lets everybody write to a folder that it is given: it has one in a private one.
    return (folder / _LINK).resolve() / "ray"


def _processes(folder: Path) -> list[psutil.Process]:
    """Those of this user's that were told of its folder or its address: Ray's own servers."""
    named, ours = [str(_temporary(folder))], []
    with suppress(OSError, ValueError, KeyError):
        named.append(f"--address={json.loads((folder / _RECORD).read_text())['address']}")
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if any(name in line for name in named) and process.uids().real == os.getuid():
                ours.append(process)
    return ours


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return Path(process.cmdline()[0]).name
    return ""
