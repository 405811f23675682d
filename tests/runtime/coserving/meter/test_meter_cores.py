"""This host's own cores, and RAPL as files: the counters of a host that has them, laid out as Linux does."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rose.runtime.coserving.meter import meter_cores
from rose.runtime.coserving.meter.meter_cores import CoresInstrument, Rapl, survey
from rose.runtime.coserving.meter.meter_reading import UnreadableError

CORE = max(os.sched_getaffinity(0))


@contextmanager
def pinned(code: str) -> Iterator[subprocess.Popen[str]]:
    """A process on `CORE` alone that has run `code` once it is handed out."""
    script = f"import os, sys\nos.sched_setaffinity(0, [{CORE}])\n{code}\nprint(flush=True)\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


def test_a_core_that_works_is_busy_and_its_processes_memory_is_counted() -> None:
    cores = CoresInstrument([CORE])
    cores.open()
    with pinned("end = os.times().elapsed + 0.5\nwhile os.times().elapsed < end: pass\nmemory = bytearray(64 << 20)"):
        reading = cores.read()
    assert reading.busy_share is not None
    assert 0 < reading.busy_share <= 1
    assert reading.memory_used_bytes is not None
    assert reading.memory_used_bytes >= 64 << 20
    assert reading.sm_clock_mhz is None


def test_a_core_that_is_not_there_is_said() -> None:
    with pytest.raises(UnreadableError, match="cores 100000 are off, or not of this host"):
        CoresInstrument([CORE, 100_000]).open()


def stat(folder: Path, *cores: tuple[int, int, int]) -> None:
    """/proc/stat with (core, user ticks, idle ticks)."""
    folder.mkdir(exist_ok=True)
    lines = [f"cpu{core} {user} 0 0 {idle} 0 0 0 0 0 0" for core, user, idle in cores]
    (folder / "stat").write_text("\n".join(["cpu  0 0 0 0 0 0 0 0 0 0", *lines, "intr 1"]))


def test_only_the_devices_cores_count_though_another_is_off(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    stat(proc, (0, 0, 0), (2, 0, 0), (3, 100, 100))
    cores = CoresInstrument([2, 3], tmp_path / "sys", proc)
    cores.open()
    stat(proc, (0, 1000, 0), (2, 30, 70), (3, 110, 190))
    assert cores.read().busy_share == (30 + 10) / 200
    assert cores.read().busy_share is None, "no tick has passed"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages of two cores, each with a RAPL zone; a second passes each time the clock is read."""
    for core in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{core // 2}\n")
    for zone, name in [
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl-mmio:0", "package-0"),
        ("intel-rapl:2", "psys"),
    ]:
        folder = tmp_path / "sys/class/powercap" / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text("1000000\n")
        (folder / "max_energy_range_uj").write_text("262143328850\n")
    stat(tmp_path / "proc", *((core, 0, 0) for core in range(4)))
    times_ns = itertools.count(0, 10**9)
    monkeypatch.setattr(meter_cores, "monotonic_ns", lambda: next(times_ns))
    return tmp_path


def counter(host: Path, package: int, energy_uj: int) -> None:
    (host / f"sys/class/powercap/intel-rapl:{package}/energy_uj").write_text(f"{energy_uj}\n")


def test_a_device_of_a_whole_package_has_its_energy(host: Path) -> None:
    cores = CoresInstrument([2, 3], host / "sys", host / "proc")
    cores.open()
    counter(host, 0, 900_000_000)
    counter(host, 1, 1_000_000 + 65_000_000)
    reading = cores.read()
    assert (reading.power_mw, reading.energy_mj, reading.source) == (65_000, 65_000, "rapl")
    counter(host, 1, 5_000_000)
    wrapped_mj = round((5_000_000 - 66_000_000 + 262_143_328_850) / 1000)
    assert cores.read().energy_mj == wrapped_mj, "it begins again at 0 after its largest value"


def test_a_part_of_a_package_is_not_given_a_share_of_its_energy(host: Path) -> None:
    cores = CoresInstrument([0], host / "sys", host / "proc")
    cores.open()
    counter(host, 0, 1_000_000 + 40_000_000)
    reading = cores.read()
    assert (reading.power_mw, reading.energy_mj, reading.source) == (None, None, "not measured")
    assert reading.package_energy_mj == 40_000
    assert reading.reason == "RAPL meters whole packages, and cores 1 of the same one are not the device's"


def test_counters_that_are_not_there_or_may_not_be_read_are_said(host: Path, tmp_path: Path) -> None:
    assert survey([0, 1, 2, 3], host / "sys") == "power by RAPL"
    # What Linux answers where only root may read: an error at the open, whoever runs this test.
    counters = host / "sys/class/powercap/intel-rapl:1/energy_uj"
    counters.unlink()
    counters.mkdir()
    assert Rapl([0, 1], host / "sys").obstacle is None
    assert survey([2, 3], host / "sys") == "power not measured: RAPL is there, and only root may read it"
    cores = CoresInstrument([2, 3], host / "sys", host / "proc")
    cores.open()
    assert cores.read().reason == "RAPL is there, and only root may read it"
    assert Rapl([0], tmp_path / "nothing").obstacle == "no RAPL under /sys/class/powercap"
