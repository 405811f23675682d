"""What the fleet's own processes take: memory, and processor time for each turn."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from benchmarks.faults.processes import processes_of
from benchmarks.fleet.setting import HostName
from tests.runtime.service.hosts import Host

#: The parts of a fleet, by what Ray calls their processes.
_TITLES = {
    "ray::ControllerActor": "controller",
    "ray::Keeper": "keeper",
    "ray::CentralActor": "ledger gateway",
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
