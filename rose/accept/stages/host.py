"""Facts about this host, and the limits of its GPU."""

import importlib.metadata
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from rose.accept.stage import Scope, StageReport

_PACKAGES = ("torch", "triton", "sglang", "sglang-kernel", "torch-memory-saver", "cuda-bindings", "ray")
_GIB = 1 << 30
_REPEATS = 5
_SIDE = 8192
_LAUNCHES = 1000


def measure(scope: Scope, report: StageReport) -> None:
    report.fact("python", sys.version.split()[0])
    for package in _PACKAGES:
        try:
            report.fact(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            report.fact(package, None)
    report.fact("cores", len(os.sched_getaffinity(0)))
    report.fact("shared memory, bytes free", shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0)
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    report.fact("MPS daemon", (pipe / "control").exists())
    try:
        pynvml.nvmlInit()
        report.fact("driver", pynvml.nvmlSystemGetDriverVersion())
        report.fact("NVML", f"{pynvml.nvmlDeviceGetCount()} GPUs")
    except pynvml.NVMLError as error:
        report.fact("NVML", f"not available: {error}")
    if scope.gpu is not None:
        _measure_card(scope, report)


def _measure_card(scope: Scope, report: StageReport) -> None:
    import torch

    torch.cuda.set_device(scope.device)
    properties = torch.cuda.get_device_properties(scope.device)
    free, total = torch.cuda.mem_get_info()
    report.fact("card", properties.name)
    report.fact("CUDA", torch.version.cuda)
    report.fact("multiprocessors", properties.multi_processor_count)
    report.fact("memory, bytes", total)
    report.fact("memory, bytes free", free)
    source = torch.ones(min(4 * _GIB, free // 4), dtype=torch.uint8, device=scope.device)
    target = torch.empty_like(source)
    host = torch.empty(min(_GIB, len(source)), dtype=torch.uint8, pin_memory=True)
    part = target[: len(host)]
    left, right = (torch.randn(_SIDE, _SIDE, device=scope.device, dtype=torch.bfloat16) for _ in range(2))
    small = torch.ones(1, device=scope.device)
    ceilings: dict[str, tuple[Callable[[], object], float]] = {
        "copy on the device, read and written, GB/s": (lambda: target.copy_(source), 2 * len(source) / 1e9),
        "pinned memory to the device, GB/s": (lambda: part.copy_(host, non_blocking=True), len(host) / 1e9),
        "device to pinned memory, GB/s": (lambda: host.copy_(part, non_blocking=True), len(host) / 1e9),
        "bf16 matrix product, TFLOP/s": (lambda: left @ right, 2 * _SIDE**3 / 1e12),
        "kernel launches, millions a second": (lambda: [small.add_(1) for _ in range(_LAUNCHES)], _LAUNCHES / 1e6),
    }
    for name, (act, amount) in ceilings.items():
        report.fact(name, float(f"{amount / median_s(torch, act):.4g}"))


def median_s(torch: Any, act: Callable[[], object]) -> float:
    act()
    times_ms = []
    for _ in range(_REPEATS):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        act()
        ended.record()
        ended.synchronize()
        times_ms.append(started.elapsed_time(ended))
    return float(statistics.median(times_ms)) / 1000
