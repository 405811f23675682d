"""Reads a device that is a set of CPU cores: how busy they are, what memory is bound to them, and RAPL where it may be.

RAPL meters whole packages. It is a device's power only if all cores of its packages are the device's; a part of a
package has no meter, and no share of the package's energy is made up for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rose.clock import monotonic_ns
from rose.events import NOT_MEASURED, Power
from rose.runtime.coserving.meter.meter_reading import UnreadableError

#: Which processes are bound to the cores is looked up once in so many readings.
_LOOK_EVERY = 10
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: `intel-rapl-mmio` is left out: it shows the same packages once more.
_ZONE = re.compile(r"intel-rapl:\d+")
_PACKAGE = re.compile(r"package-(\d+)")


class Rapl:
    """The energy counters of the packages that `cores` lie in.

    `obstacle` is why they do not meter these cores, or None.
    """

    def __init__(self, cores: Sequence[int], sysfs: Path = Path("/sys")) -> None:
        packages = dict(_packages(sysfs))
        own = {packages[core] for core in cores if core in packages}
        zones = {path: package for path, package in _zones(sysfs) if package in own}
        others = sorted(core for core, package in packages.items() if package in own and core not in cores)
        self.zones = sorted(zones)
        #: Whether the packages are the device's alone.
        self.whole = not others
        self.obstacle: str | None = None
        if not own or set(zones.values()) != own:
            self.zones = []
            self.obstacle = "no RAPL under /sys/class/powercap"
        elif self.read_uj() is None:
            self.obstacle = "RAPL is there, and only root may read it"
        elif others:
            self.obstacle = (
                f"RAPL meters whole packages, and cores {_listed(others)} of the same one are not the device's"
            )

    def read_uj(self) -> dict[Path, int] | None:
        """The counter of each zone, microjoules; None if one cannot be read."""
        try:
            return {zone: int((zone / "energy_uj").read_text()) for zone in self.zones}
        except (OSError, ValueError):
            return None

    def between_uj(self, before: dict[Path, int], after: dict[Path, int]) -> int:
        """Microjoules from one reading to the next; a counter begins again at 0 after its largest value."""
        drawn_uj = 0
        for zone, value in after.items():
            drawn_uj += value - before[zone]
            if value < before[zone]:
                drawn_uj += int((zone / "max_energy_range_uj").read_text())
        return drawn_uj


class CoresInstrument:
    """Cores of this host."""

    sample_s = None

    def __init__(self, cores: Sequence[int], sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._cores = frozenset(cores)
        self._sysfs, self._proc = sysfs, proc
        self._rapl = Rapl(sorted(cores), sysfs)
        self._t0_ns = 0
        self._ticks = (0, 0)
        self._energy_uj: dict[Path, int] | None = None
        self._bound: list[int] = []
        self._readings = 0

    def open(self) -> int:
        self._rapl = Rapl(sorted(self._cores), self._sysfs)
        self._ticks = self._busy_and_total_ticks()
        self._energy_uj = self._rapl.read_uj() if self._rapl.zones else None
        self._t0_ns = monotonic_ns()
        return self._t0_ns

    def sample(self) -> None:
        pass

    def read(self) -> Power:
        if self._readings % _LOOK_EVERY == 0:
            self._bound = list(self._bound_processes())
        self._readings += 1
        ticks = self._busy_and_total_ticks()
        energy_uj = self._rapl.read_uj() if self._rapl.zones else None
        t0_ns, t1_ns = self._t0_ns, monotonic_ns()
        power = self._power(energy_uj, t1_ns)
        busy, total = (now - before for now, before in zip(ticks, self._ticks, strict=True))
        self._t0_ns, self._ticks, self._energy_uj = t1_ns, ticks, energy_uj
        return Power(
            t0_ns=t0_ns,
            t1_ns=t1_ns,
            busy_share=min(1.0, max(0.0, busy / total)) if total > 0 else None,
            memory_used_bytes=sum(map(self._resident_bytes, self._bound)),
            **power,
        )

    def close(self) -> None:
        pass

    def _power(self, energy_uj: dict[Path, int] | None, t1_ns: int) -> dict[str, Any]:
        unmeasured = {"power_mw": None, "source": NOT_MEASURED}
        if energy_uj is None or self._energy_uj is None:
            return {**unmeasured, "reason": self._rapl.obstacle or "RAPL could not be read"}
        drawn_uj = self._rapl.between_uj(self._energy_uj, energy_uj)
        if not self._rapl.whole:
            return {**unmeasured, "package_energy_mj": round(drawn_uj / 1000), "reason": self._rapl.obstacle}
        return {
            "power_mw": round(drawn_uj * 1_000_000 / max(1, t1_ns - self._t0_ns)),
            "source": "rapl",
            "energy_mj": round(drawn_uj / 1000),
        }

    def _busy_and_total_ticks(self) -> tuple[int, int]:
        """Ticks that the cores worked, and all their ticks, since the host started.

        Not through psutil, whose list has no core numbers: it shifts where a core is off.
        """
        try:
            lines = (self._proc / "stat").read_text().splitlines()
        except OSError as error:
            raise UnreadableError(f"{self._proc / 'stat'}: {error.strerror}") from error
        busy = total = 0
        seen = set()
        for line in lines:
            name, _, rest = line.partition(" ")
            if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in self._cores:
                seen.add(int(name[3:]))
                # user, nice, system, idle, iowait, irq, softirq, steal; what guests took is in user already.
                user, nice, system, idle, iowait, irq, softirq, steal = map(int, rest.split()[:8])
                busy += user + nice + system + irq + softirq
                total += user + nice + system + idle + iowait + irq + softirq + steal
        if missing := self._cores - seen:
            raise UnreadableError(f"cores {_listed(sorted(missing))} are off, or not of this host")
        return busy, total

    def _bound_processes(self) -> Iterator[int]:
        """Processes that may run on no other cores."""
        for entry in self._proc.iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if os.sched_getaffinity(int(entry.name)) <= self._cores:
                        yield int(entry.name)

    def _resident_bytes(self, pid: int) -> int:
        """0 for a process that has ended."""
        try:
            return int((self._proc / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            return 0


def survey(cores: Sequence[int], sysfs: Path = Path("/sys")) -> str:
    """How the power of a device of these cores will be read."""
    obstacle = Rapl(cores, sysfs).obstacle
    return "power by RAPL" if obstacle is None else f"power not measured: {obstacle}"


def _packages(sysfs: Path) -> Iterator[tuple[int, int]]:
    """(core, package) of each core that is on."""
    for folder in (sysfs / "devices/system/cpu").glob("cpu[0-9]*"):
        with suppress(OSError, ValueError):
            yield int(folder.name[3:]), int((folder / "topology/physical_package_id").read_text())


def _zones(sysfs: Path) -> Iterator[tuple[Path, int]]:
    """(folder, package) of each of RAPL's package zones."""
    for folder in (sysfs / "class/powercap").glob("intel-rapl:*"):
        with suppress(OSError):
            if _ZONE.fullmatch(folder.name) and (named := _PACKAGE.match((folder / "name").read_text())):
                yield folder, int(named[1])


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
