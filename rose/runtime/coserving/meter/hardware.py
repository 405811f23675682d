"""Which hardware a device is, whatever a fleet file calls it: its time is counted once, however many runs use it.

A GPU or MIG instance is its UUID. Cores, and a GPU whose driver does not answer, are their numbers on a host of that
name.
"""

from __future__ import annotations

import os
import socket
import threading
from itertools import groupby

from rose.config import DeviceConfig
from rose.runtime.coserving.meter.meter_gpu import GpuInstrument
from rose.runtime.coserving.meter.meter_reading import UnreadableError

#: A driver that hangs keeps its caller for ever; nobody waits longer for it than this.
_DRIVER_S = 5.0


def hardware_id(device: DeviceConfig) -> str:
    """What tells the device from every other, such as `GPU-5c1e...` or `node-3/cores-0-7`."""
    host = socket.gethostname()
    if device.gpu is None:
        return f"{host}/cores-{_ranges(device.cores)}"
    answers: list[str] = []
    asking = threading.Thread(target=_ask, args=(device.gpu, answers), name=f"uuid-{device.id}", daemon=True)
    asking.start()
    asking.join(_DRIVER_S)
    if answers:
        return answers[0]
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
    return f"{host}/gpu-{visible[device.gpu].strip() if device.gpu < len(visible) and any(visible) else device.gpu}"


def _ask(gpu: int, answers: list[str]) -> None:
    instrument = GpuInstrument(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        instrument.open()
    except UnreadableError:
        return
    answers.append(instrument.uuid)
    instrument.close()


def _ranges(cores: list[int]) -> str:
    """`0-3,8` of 0, 1, 2, 3 and 8."""
    ordered = sorted(cores)
    runs = [[core for _, core in run] for _, run in groupby(enumerate(ordered), lambda each: each[1] - each[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
