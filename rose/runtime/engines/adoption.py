"""Lets engines outlive their starter. An engine ends when its record is gone, or its page has no agent for too long."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rose import private_files

if TYPE_CHECKING:
    from rose.runtime.engines.sglang import EngineSpec

#: Starts a program and prints the pid of the process that remains. The output of that process goes to stderr.
_SCRIPT = """
import os, sys
pid = os.fork()
if pid:
    print(pid, flush=True)
    os._exit(0)
os.setsid()
os.dup2(2, 1)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def start_detached(
    arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes], prefix: Sequence[str] = ()
) -> int:
    """Start this Python with `arguments` in a process that outlives the caller. Return its pid. Raises OSError."""
    started = subprocess.run(
        [*prefix, sys.executable, "-c", _SCRIPT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        env=dict(environment),
        start_new_session=True,
        check=False,
    )
    if started.returncode != 0:
        raise OSError(f"{sys.executable} ended with exit code {started.returncode}; see {log.name}")
    return int(started.stdout)


UNKNOWN_EXIT = 256  # The exit code of an ended process if only its parent knows the true code.
_VARIABLE = "ROSE_ENGINE_DETACHED"
_LOOK_S = 1.0
_GRACE_S = 10.0
_SUFFIX = ".engine.json"
_PF_EXITING = 0x4  # The kernel's flag of an exiting task, in `/proc/PID/stat`.
_MEASURED = "--mem-fraction-static="  # Each agent measures free GPU memory again.
_INCIDENTAL = ("port", "any_port", "log", "fork_server", "start_cores", "orphan_s")


def installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class EngineRecord:
    pid: int
    start_ticks: int
    boot_id: str
    port: int
    spec_sha256: str

    @classmethod
    def of_process(cls, pid: int, port: int, spec_sha256: str) -> EngineRecord:
        return cls(pid, start_ticks(pid), boot_id(), port, spec_sha256)

    @classmethod
    def read(cls, page: Path) -> EngineRecord | None:
        try:
            return cls(**json.loads(record_path(page).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, page: Path) -> None:
        private_files.write(record_path(page), json.dumps(dataclasses.asdict(self)))

    def process(self) -> DetachedProcess | None:
        if self.boot_id != boot_id():
            return None
        # Open the handle first: the pid then belongs to this process.
        process = DetachedProcess.open(self.pid)
        with suppress(ProcessLookupError):
            if process is not None and start_ticks(self.pid) == self.start_ticks:
                return process
        return None


class DetachedProcess:
    """A process that is not a child of this one, with the methods of `subprocess.Popen` that engines need."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._ended = False
        weakref.finalize(self, os.close, pidfd)

    @classmethod
    def open(cls, pid: int) -> DetachedProcess | None:
        try:
            return cls(pid, os.pidfd_open(pid))
        except OSError:
            return None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            if not poller.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"engine process {self.pid}", timeout or 0.0)
            self._ended = True
        return UNKNOWN_EXIT

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


def record_path(page: Path) -> Path:
    return page.with_name(f"{page.name}{_SUFFIX}")


def living(folder: Path) -> Iterator[EngineRecord]:
    for path in folder.rglob(f"*{_SUFFIX}"):
        record = EngineRecord.read(path.with_name(path.name.removesuffix(_SUFFIX)))
        if record is not None and record.process() is not None:
            yield record


def spec_sha256(spec: EngineSpec) -> str:
    """Return a digest of the engine's arguments and code. An engine is adopted only if its digest is the same."""
    facts = {name: value for name, value in dataclasses.asdict(spec).items() if name not in _INCIDENTAL}
    facts["extra_args"] = [argument for argument in spec.extra_args if not argument.startswith(_MEASURED)]
    facts |= {name: installed_version(name) for name in ("rose-serving", "sglang")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def environment(spec: EngineSpec) -> dict[str, str]:
    if spec.orphan_s is None:
        return {}
    facts = {"port": spec.port, "spec_sha256": spec_sha256(spec), "orphan_s": spec.orphan_s}
    return {_VARIABLE: json.dumps({"page": str(spec.plugin.page), **facts})}


def watch_from_within() -> None:
    """Write this engine's record, and end the engine when it is orphaned. Call this in the engine's first process."""
    if not (text := os.environ.get(_VARIABLE)):
        return
    facts = json.loads(text)
    page = Path(facts["page"])
    own = EngineRecord.of_process(os.getpid(), facts["port"], facts["spec_sha256"])
    own.write(page)
    threading.Thread(target=_watch, args=(own, page, facts["orphan_s"]), name="rose-orphan", daemon=True).start()


def is_detached(environment: Mapping[str, str] = os.environ) -> bool:
    return _VARIABLE in environment


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot. Raises ProcessLookupError if it has ended."""
    try:
        fields = _stat(pid)
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    if fields[0] in ("Z", "X"):
        raise ProcessLookupError(f"process {pid} has ended")
    return int(fields[19])


def is_ending(pid: int) -> bool:
    """Return whether a process is gone or was killed. In SCHED_IDLE, a killed process may take seconds to end."""
    try:
        fields = _stat(pid)
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    killed = any(mask >> (signal.SIGKILL - 1) & 1 for mask in masks)
    return killed or fields[0] in ("Z", "X") or bool(int(fields[6]) & _PF_EXITING)


def _stat(pid: int) -> list[str]:
    """Return the fields after the process's name in `/proc/PID/stat`. The name may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _watch(own: EngineRecord, page: Path, orphan_s: float) -> None:
    seen_s = time.monotonic()
    while True:
        time.sleep(min(_LOOK_S, orphan_s / 4))
        if EngineRecord.read(page) != own:
            _end("its record is gone or names another engine")
        if _has_agent(page):
            seen_s = time.monotonic()
        elif time.monotonic() - seen_s >= orphan_s:
            _end(f"no agent was on {page} for {orphan_s:.0f} s")


def _has_agent(page: Path) -> bool:
    from rose.runtime.coserving.page import ArbiterPage, PageError, Party

    try:
        with closing(ArbiterPage(page)) as opened:
            return opened.alive(Party.AGENT)
    except (OSError, PageError):
        return False


def _end(reason: str) -> None:
    print(f"ROSE ends this engine: {reason}", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)
