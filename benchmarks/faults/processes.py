"""What runs on the hosts: found, struck, started again as a service manager does, and what it takes of them."""

from __future__ import annotations

import itertools
import signal
import statistics
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
from tests.runtime.hosts import Host

_LOOK_S, _RESTART_S = 0.2, 2.0
_ENTER = "nsenter"
GROWTH_MAX = 1.05


class Service:
    """A program that a host's service manager starts again whenever it ends."""

    def __init__(self, host: Host, name: str, *arguments: str, heard: Callable[[str], None] | None = None) -> None:
        self.host, self.name, self._arguments, self._heard = host, name, arguments, heard
        self.environment: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process: subprocess.Popen[str] | None = None
        #: How it ended, each time.
        self.codes: list[int] = []

    def start(self) -> Service:
        self._thread.start()
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> None:
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                # What enters the host's namespaces waits for the program itself.
                programs = psutil.Process(process.pid).children() or [psutil.Process(process.pid)]
                kill(programs, number)
                _, left = psutil.wait_procs(programs, timeout_s)
                kill(left, signal.SIGKILL)
            process.wait()
        self._thread.join()

    def _run(self) -> None:
        log = self.host.disk / f"{self.name}.log"
        while not self._stopping.is_set():
            if not self.host.up:
                self._stopping.wait(_LOOK_S)
                continue
            with log.open("a") as file:
                output: Any = file if self._heard is None else subprocess.PIPE
                self._process = self.host.start(*self._arguments, output=output, **self.environment)
                if self._process.stdout is not None:
                    assert self._heard is not None
                    for line in self._process.stdout:
                        self._heard(line)
                self.codes.append(self._process.wait())
            self._stopping.wait(_RESTART_S)


def kill(processes: Sequence[psutil.Process], number: signal.Signals) -> bool:
    """Whether there was one to send the signal to."""
    sent = False
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            sent = True
            # What entered the host's namespaces for a program stops when that does, and does not go on with it.
            if number is signal.SIGCONT and (parent := process.parent()) is not None and name_of(parent) == _ENTER:
                parent.send_signal(number)
    return sent


def processes_of(host: Host) -> list[psutil.Process]:
    """What runs on a host, whoever started it; nothing on one without power."""
    found: list[psutil.Process] = []
    try:
        there = _space(host.first_pid)
    except OSError:
        return found
    for process in psutil.process_iter():
        with suppress(OSError):
            if _space(process.pid) == there:
                found.append(process)
    return found


def _space(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


def number_inside(process: psutil.Process) -> int:
    """A process's number among those of its host."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def name_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""


def title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


#: The parts of a fleet, by what Ray calls their processes.
_TITLES = {
    "ray::ControllerActor": "controller",
    "ray::Keeper": "keeper",
    "ray::HostActor": "host agent",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one process. `memory_bytes` is what nobody shares with it, `cpu_s` what it has taken so far."""

    at_s: float
    pid: int
    memory_bytes: int
    cpu_s: float
    turns: int


@dataclass(slots=True)
class Watch:
    """Looks every `look_s` seconds, in a thread, from `start` to `stop`. `turns` says how many there were so far."""

    hosts: Mapping[HostName, Host]
    turns: Callable[[], int]
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
            turns, now = self.turns(), time.monotonic()
            for name, process in self._find():
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    memory_bytes = process.memory_full_info().uss
                    sample = Sample(now, process.pid, memory_bytes, times.user + times.system, turns)
                    self.samples.setdefault(name, []).append(sample)

    def _find(self) -> list[tuple[str, psutil.Process]]:
        parts = []
        for host_name, host in self.hosts.items():
            for process in processes_of(host):
                with suppress(psutil.Error):
                    title = " ".join(process.cmdline())
                    name = next((name for start, name in _TITLES.items() if title.startswith(start)), None)
                    if name is not None:
                        parts.append((f"{name} of host {host_name}" if name == "host agent" else name, process))
        return parts


def longest_lived(samples: list[Sample]) -> list[Sample]:
    """Those of the process that was the part for the longest time; none of none."""
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.pid, []).append(sample)
    return max(lives.values(), key=lambda life: life[-1].at_s - life[0].at_s, default=[])


def growth(samples: list[Sample]) -> float | None:
    """Memory in the last third of the time over that in the third before it; None for fewer than three samples."""
    if len(samples) < 3:
        return None
    third = len(samples) // 3
    before, last = (
        statistics.fmean(sample.memory_bytes for sample in part) for part in (samples[third:-third], samples[-third:])
    )
    return last / before


def cpu_ms_per_turn(samples: list[Sample]) -> float | None:
    """Of the processes that were the part, together; None where no turn was."""
    turns = samples[-1].turns - samples[0].turns if samples else 0
    if turns <= 0:
        return None
    taken_s = 0.0
    for before, after in itertools.pairwise(samples):
        taken_s += after.cpu_s - (before.cpu_s if after.pid == before.pid else 0.0)
    return taken_s / turns * 1e3
