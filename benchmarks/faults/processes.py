"""Starts, finds, signals and measures processes of the hosts."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.plan import HostName
from rose.errors import UserError
from tests.runtime.hosts import Host

_LOOK_S, _RESTART_S = 0.2, 2.0
_ENTER = "nsenter"
_TAIL_LINES = 20


class FleetError(UserError):
    """The fleet or a client did not start, did not end, or is lost."""


class Program:
    """A program on a host, restarted if `again`. Lines of JSON go to `heard`, other output to the log."""

    def __init__(
        self,
        host: Host,
        name: str,
        *arguments: str,
        again: bool = False,
        heard: Callable[[dict[str, Any]], None] | None = None,
        **environment: str,
    ) -> None:
        self.host, self.name, self.lines = host, name, list[dict[str, Any]]()
        self.codes: list[int] = []
        self._arguments, self._environment, self._again = arguments, environment, again
        self._heard = heard or self.lines.append
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def code(self) -> int | None:
        return None if self._thread.is_alive() or not self.codes else self.codes[-1]

    @property
    def tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self._log.read_text().splitlines()[-_TAIL_LINES:])
        return ""

    @property
    def _log(self) -> Path:
        return self.host.disk / f"{self.name}.log"

    def send(self, number: signal.Signals) -> list[psutil.Process]:
        process = self._process
        if process is None or process.poll() is not None:
            return []
        with suppress(psutil.NoSuchProcess):
            programs = psutil.Process(process.pid).children() or [psutil.Process(process.pid)]
            kill(programs, number)
            return programs
        return []

    def wait(self, timeout_s: float) -> int:
        """Return the exit code. Raises FleetError after `timeout_s`."""
        self._thread.join(timeout_s)
        if (code := self.code) is None:
            raise FleetError(f"{self.name} did not end within {timeout_s:.0f} s:\n{self.tail}")
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> None:
        self._stopping.set()
        _, left = psutil.wait_procs(self.send(number), timeout_s)
        kill(left, signal.SIGKILL)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self.host.up:
                self._stopping.wait(_LOOK_S)
                continue
            self._process = self.host.start(*self._arguments, output=subprocess.PIPE, **self._environment)
            assert self._process.stdout is not None
            with self._log.open("a") as log:
                for line in self._process.stdout:
                    self._read(line, log.write)
                    log.flush()
            self.codes.append(self._process.wait())
            if not self._again:
                break
            self._stopping.wait(_RESTART_S)

    def _read(self, line: str, write: Callable[[str], object]) -> None:
        if line.startswith("{"):
            with suppress(ValueError):
                self._heard(json.loads(line))
                return
        write(line)


def until(what: str, met: Callable[[], bool], timeout_s: float, *programs: Program) -> None:
    """Wait until `met`. Raises FleetError after `timeout_s`, or when a program ends."""
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(OSError):
            if met():
                return
        for program in programs:
            if program.code is not None:
                raise FleetError(f"{program.name} ended with exit code {program.code}:\n{program.tail}")
        if time.monotonic() > deadline:
            raise FleetError("\n".join([f"{what}: not within {timeout_s:.0f} s", *(one.tail for one in programs)]))
        time.sleep(_LOOK_S)


def kill(processes: Sequence[psutil.Process], number: signal.Signals) -> bool:
    sent = False
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            sent = True
            # The process that entered the host's namespaces stops with its program, and does not continue with it.
            if number is signal.SIGCONT and (parent := process.parent()) is not None and name_of(parent) == _ENTER:
                parent.send_signal(number)
    return sent


def processes_of(host: Host) -> list[psutil.Process]:
    inside: list[psutil.Process] = []
    try:
        space = _space(host.first_pid)
    except OSError:
        return inside
    for process in psutil.process_iter():
        with suppress(OSError):
            if _space(process.pid) == space:
                inside.append(process)
    return inside


def _space(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


def numbered(host: Host, number: int) -> psutil.Process | None:
    for process in processes_of(host):
        with suppress(OSError):
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("NSpid:") and int(line.split()[-1]) == number:
                    return process
    return None


def name_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""


def title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


_TITLES = {"ray::ControllerActor": "controller", "ray::HostActor": "host agent"}


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    pid: int
    memory_bytes: int


@dataclass(slots=True)
class Watch:
    """Samples the fleet's processes every `look_s` seconds until `stop`."""

    hosts: Mapping[HostName, Host]
    look_s: float
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while not self._stopping.wait(self.look_s):
            for host_name, host in self.hosts.items():
                for process in processes_of(host):
                    name = next((name for start, name in _TITLES.items() if title_of(process).startswith(start)), None)
                    with suppress(psutil.Error):
                        if name is not None:
                            part = f"{name} of host {host_name}" if name == "host agent" else name
                            sample = Sample(time.monotonic(), process.pid, process.memory_full_info().uss)
                            self.samples.setdefault(part, []).append(sample)


def longest_lived(samples: list[Sample]) -> list[Sample]:
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.pid, []).append(sample)
    return max(lives.values(), key=lambda life: life[-1].at_s - life[0].at_s, default=[])
