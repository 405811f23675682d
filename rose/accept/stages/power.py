"""Tests the device's power meter: `power` events have no gaps, and the energy counter agrees with readings of power."""

import os
import time
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pynvml

from rose.accept.stage import Scope, StageReport
from rose.clock import Anchor, monotonic_ns
from rose.config import DeviceConfig
from rose.events import Event, Power
from rose.runtime.coserving.meter.meter import DeviceMeter

_SIDE = 4096
_ERROR_MAX = 0.05
_SETTLING_NS = 1_500_000_000  # Time of a card to reach its clocks under a new load.


def measure(scope: Scope, report: StageReport) -> None:
    """Let the device rest for a third of the time, then work. The energy counter and the readings of power are compared
    only while the work is steady."""
    seconds = min(9.0, scope.seconds / 2)
    events: list[Power] = []

    def record(event: Event, *, durable: bool | None = None) -> None:
        assert isinstance(event, Power)
        events.append(event)

    cores = sorted(os.sched_getaffinity(0)) if scope.gpu is None else []
    device = DeviceConfig(id="device", pool="serving", device_class="any", gpu=scope.gpu, cores=cores, kv_bytes=1)
    anchor = Anchor.take()
    card = None if scope.gpu is None else _Card(scope.gpu)
    meter = DeviceMeter(device, record, anchor, 0.5)
    meter.start()
    began_ns, samples = monotonic_ns(), list[tuple[int, int]]()
    working_ns = began_ns + int(seconds / 3 * 1e9)
    while (now_ns := monotonic_ns()) < began_ns + seconds * 1e9:
        if now_ns < working_ns:
            time.sleep(0.02)
        elif card is None:
            sum(range(200_000))
        else:
            card.work()
        if card is not None:
            samples.append((anchor.utc_ns(now_ns), card.power_mw()))
    meter.stop()
    report.detail["events"] = [asdict(event) for event in events]
    gap_ns = sum(abs(after.t0_ns - before.t1_ns) for before, after in pairwise(events))
    report.claim("power: time between readings", gap_ns, "ns", 0, "lower")
    report.claim("power: readings", len(events), "readings", seconds, "higher")
    report.fact("source", sorted({event.source for event in events}))
    if card is not None:
        steady_ns = anchor.utc_ns(working_ns) + _SETTLING_NS
        _compare(report, events, [sample for sample in samples if sample[0] >= steady_ns])


def _compare(report: StageReport, events: list[Power], samples: list[tuple[int, int]]) -> None:
    counted = [event for event in events if event.source == "nvml-energy"]
    report.fact("readings by the energy counter", f"{len(counted)} of {len(events)}")
    if not counted:
        return
    least_mj = min(event.energy_mj or 0 for event in counted)
    report.claim("power: least energy of a reading", least_mj, "mJ", 0, "higher")
    report.fact("power at rest, W", (counted[0].power_mw or 0) / 1000)
    steady = [event for event in counted if samples and event.t0_ns >= samples[0][0]]
    if not steady:
        return
    length_ns = sum(event.t1_ns - event.t0_ns for event in steady)
    counter_mw = sum(event.energy_mj or 0 for event in steady) * 1e9 / length_ns
    times_ns, powers_mw = np.array(samples, dtype=float).T
    power_mw = float(np.trapezoid(powers_mw, times_ns) / (times_ns[-1] - times_ns[0]))
    report.fact("power at work, W", {"energy counter": counter_mw / 1000, "readings of power": power_mw / 1000})
    apart = abs(counter_mw - power_mw) / power_mw
    report.claim("power: energy counter and readings of power apart", apart, "share", _ERROR_MAX, "lower")


class _Card:
    def __init__(self, gpu: int) -> None:
        import torch

        self._torch = torch
        self._matrix = torch.randn(_SIDE, _SIDE, device=f"cuda:{gpu}", dtype=torch.bfloat16)
        self.work()
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(gpu).uuid).removeprefix("GPU-")
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def work(self) -> None:
        for _ in range(16):
            self._torch.mm(self._matrix, self._matrix)
        self._torch.cuda.synchronize(self._matrix.device)

    def power_mw(self) -> int:
        field = pynvml.nvmlDeviceGetFieldValues(self._handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if field.nvmlReturn == pynvml.NVML_SUCCESS:
            return int(field.value.uiVal)
        return int(pynvml.nvmlDeviceGetPowerUsage(self._handle))
