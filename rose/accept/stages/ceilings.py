"""What the card does at most: the denominators of what other stages measure. Facts only."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from rose.accept.stage import Scope, StageReport

_GIB = 1 << 30
_REPEATS = 5
#: Rows and columns of the matrices that are multiplied.
_SIDE = 8192
_LAUNCHES = 1000


def measure(scope: Scope, report: StageReport) -> None:
    """Medians of a few repeats."""
    torch.cuda.set_device(scope.device)
    size_bytes = min(4 * _GIB, torch.cuda.mem_get_info()[0] // 4)
    source = torch.ones(size_bytes, dtype=torch.uint8, device=scope.device)
    target = torch.empty_like(source)
    seconds = _seconds(lambda: target.copy_(source))
    report.fact("copy on the device, read and written, GB/s", _rounded(2 * size_bytes / seconds / 1e9))
    host = torch.empty(_GIB, dtype=torch.uint8, pin_memory=True)
    part = target[: min(_GIB, size_bytes)]
    seconds = _seconds(lambda: part.copy_(host[: len(part)], non_blocking=True))
    report.fact("pinned memory to the device, GB/s", _rounded(len(part) / seconds / 1e9))
    seconds = _seconds(lambda: host[: len(part)].copy_(part, non_blocking=True))
    report.fact("device to pinned memory, GB/s", _rounded(len(part) / seconds / 1e9))
    left, right = (torch.randn(_SIDE, _SIDE, device=scope.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = _seconds(lambda: left @ right)
    report.fact("bf16 matrix product, TFLOP/s", _rounded(2 * _SIDE**3 / seconds / 1e12))
    small = torch.ones(1, device=scope.device)
    seconds = _seconds(lambda: [small.add_(1) for _ in range(_LAUNCHES)])
    report.fact("launch of a kernel, us", _rounded(seconds / _LAUNCHES * 1e6))


def _seconds(act: Callable[[], object]) -> float:
    """Median of a few times, by the device's own clock."""
    act()
    times_ms = []
    for _ in range(_REPEATS):
        started, ended = _event(), _event()
        started.record()
        act()
        ended.record()
        ended.synchronize()
        times_ms.append(started.elapsed_time(ended))
    return float(statistics.median(times_ms)) / 1000


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
