"""Gives each device's hardware one id, so that no time is counted twice. Finds engines that run on the wrong device."""

import os
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from rose.config import DeviceConfig
from rose.runtime.coserving.kv.kv_blocks import runs
from rose.runtime.coserving.meter.meter_gpu import GpuInstrument, UnreadableError
from rose.runtime.platform.gpu import mps

_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def hardware_id(device: DeviceConfig) -> str:
    """Return the unique id of a device's hardware: a GPU's UUID such as `GPU-5c1e...`, or `node-3/cores-0-7`."""
    host = socket.gethostname()
    if device.gpu is None:
        return f"{host}/cores-{_ranges(device.cores)}"
    try:
        with closing(GpuInstrument(device.gpu, os.environ.get(_VISIBLE))) as card:
            card.open()
            return card.uuid
    except UnreadableError:
        return f"{host}/gpu-{_number(device.gpu)}"


def elsewhere(device: DeviceConfig, page: Path, pid: int) -> str | None:
    """Return why the process `pid` cannot use the device although it uses the device's page, or None."""
    process = Path("/proc") / str(pid)
    try:
        inode = str(page.stat().st_ino)
        if all(line.split()[4] != inode for line in (process / "maps").read_text().splitlines()):
            return None  # In a container it is another process that has this pid here.
        cores = os.sched_getaffinity(pid)
        variables = (process / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return None
    if device.gpu is None:
        alone = f"cores {_ranges(list(cores))}" if cores.isdisjoint(device.cores) else None
    else:
        alone = _other_gpus(_number(device.gpu), dict(variable.partition("=")[::2] for variable in variables))
    if alone is None:
        return None
    return f"its process may use only {alone}, which is not this device: attach it to the page of that device"


def _other_gpus(number: str, environment: Mapping[str, str]) -> str | None:
    """Return the names of the GPUs that a process with this environment sees. Return None if GPU `number` is one of
    them, or if they are unknown, as with MPS."""
    visible = [token.strip() for token in environment.get(_VISIBLE, "").split(",")]
    alike = environment.get(_ORDER) == os.environ.get(_ORDER) and not mps.daemon_runs(environment)
    if not alike or number in visible or not all(token.isdigit() for token in [number, *visible]):
        return None
    return f"GPU {', '.join(visible)}"


def _number(gpu: int) -> str:
    visible = (os.environ.get(_VISIBLE) or "").split(",")
    return visible[gpu].strip() if gpu < len(visible) and any(visible) else str(gpu)


def _ranges(cores: list[int]) -> str:
    spans = [(begin, end - 1) for begin, end in runs(cores)]
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in spans)
