"""Starts and calls the fork server: a process that has loaded SGLang, so that engines forked from it start faster."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rose import private_files
from rose.runtime.engines.adoption import DetachedProcess, installed_version
from rose.runtime.platform.placement import start_prefix

PACKET_BYTES_MAX = 1 << 20
#: Loading SGLang takes minutes, and a fresh process would slow the loading down. If the server ends, the requester
#: notices it at once.
_ANSWER_TIMEOUT_S = 300.0
_STOP_GRACE_S = 5.0


class ForkError(Exception):
    """No engine was forked. The message says why."""


@dataclass(frozen=True, slots=True)
class ForkServer:
    path: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls, path: Path, log: Path, environment: Mapping[str, str] | None = None, cores: Sequence[int] = ()
    ) -> ForkServer:
        """Start a server and return it. Requests wait until SGLang is loaded. Raises OSError."""
        private_files.make(path.parent)
        log.parent.mkdir(parents=True, exist_ok=True)
        creator = os.pidfd_open(os.getpid())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, log.open("wb") as output:
                path.unlink(missing_ok=True)
                listening.bind(str(path))
                path.chmod(0o600)
                listening.listen(16)
                arguments = map(str, (path, listening.fileno(), creator))
                process = subprocess.Popen(
                    [*start_prefix(cores, 0), sys.executable, "-m", "rose.runtime.engines.forkserver_main", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **server_environment(), **(environment or {})},
                    pass_fds=(listening.fileno(), creator),
                    # One session for all: with autogroups the kernel compares niceness only within one.
                    start_new_session=True,
                )
        finally:
            os.close(creator)
        return cls(path, process)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.path.unlink(missing_ok=True)


def installed_code() -> dict[str, str]:
    folder, changed_ns = Path(__file__).parents[2], 0
    for path in folder.rglob("*.py"):
        with suppress(FileNotFoundError):
            changed_ns = max(changed_ns, path.stat().st_mtime_ns)
    # Two checkouts may have the same version.
    rose = f"{installed_version('rose-serving')} in {folder}, changed at {changed_ns}"
    return {"ROSE": rose, "SGLang": installed_version("sglang")}


def server_environment() -> dict[str, str]:
    """Return a server's environment. It allows one OpenMP thread, because a thread pool does not survive a fork."""
    from rose.runtime.platform import cpu, gpu

    return {"ROSE_ENGINE_ON_CPU": "1", **cpu.ENVIRONMENT, **gpu.environment_on_cores(), "OMP_NUM_THREADS": "1"}


def fork_engine(
    path: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: IO[bytes],
    *,
    cores: Sequence[int] = (),
    nice: int = 0,
    own_session: bool = False,
) -> DetachedProcess:
    """Have a server fork an engine, which dies with this process unless `environment` detaches it. Raises ForkError."""
    message = {"engine_arguments": list(arguments), "environment": dict(environment), "own_session": own_session}
    message |= {"cores": list(cores), "nice": nice}
    request = json.dumps(message | {"code": installed_code()}).encode()
    if not private_files.is_private(path.parent):
        # The environment has secrets.
        raise ForkError(f"no fork server of this user answers at {path}: its folder is gone or other users can open it")
    try:
        requester = os.pidfd_open(os.getpid())
    except OSError as error:
        raise ForkError(f"this kernel supports no process handles ({error})") from None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.connect(str(path))
            socket.send_fds(connection, [request], [requester, log.fileno()])
            packet, received, _, _ = socket.recv_fds(connection, PACKET_BYTES_MAX, 1)
    except OSError as error:
        raise ForkError(f"no fork server answers at {path} ({error})") from None
    finally:
        os.close(requester)
    if not packet:
        raise ForkError(f"the fork server at {path} ended")
    answer = json.loads(packet)
    if "refused" in answer:
        raise ForkError(f"the fork server at {path} refused: {answer['refused']}")
    return DetachedProcess(answer["pid"], received[0])
