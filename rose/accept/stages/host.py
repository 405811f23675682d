"""What this host is: card, driver, torch, SGLang, and which mechanisms it has. Facts only."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

import pynvml

from rose.accept.stage import Scope, StageReport


def measure(scope: Scope, report: StageReport) -> None:
    """Claims nothing."""
    report.fact("python", sys.version.split()[0])
    for package in ("torch", "triton", "sglang", "sglang-kernel", "torch-memory-saver", "cuda-bindings", "ray"):
        report.fact(package, _version(package))
    report.fact("cores", len(os.sched_getaffinity(0)))
    report.fact("shared memory, bytes free", shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0)
    report.fact("nvcc", shutil.which("nvcc"))
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    report.fact("MPS daemon", (pipe / "control").exists())
    _nvml(report)
    if scope.gpu is not None:
        _card(scope.gpu, report)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvml(report: StageReport) -> None:
    try:
        pynvml.nvmlInit()
        report.fact("driver", pynvml.nvmlSystemGetDriverVersion())
        report.fact("NVML", f"{pynvml.nvmlDeviceGetCount()} GPUs")
    except pynvml.NVMLError as error:
        report.fact("NVML", f"not there: {error}")


def _card(gpu: int, report: StageReport) -> None:
    import torch

    properties = torch.cuda.get_device_properties(gpu)
    free, total = torch.cuda.mem_get_info(gpu)
    report.fact("card", properties.name)
    report.fact("CUDA", torch.version.cuda)
    report.fact("multiprocessors", properties.multi_processor_count)
    report.fact("memory, bytes", total)
    report.fact("memory, bytes free", free)
