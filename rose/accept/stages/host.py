"""Facts about this host and its GPU."""

import os
import shutil
import sys
from pathlib import Path

import pynvml

from rose.accept.stage import Scope, StageReport
from rose.runtime.engines.adoption import installed_version

_PACKAGES = ("torch", "triton", "sglang", "sglang-kernel", "torch-memory-saver", "cuda-bindings", "ray")


def measure(scope: Scope, report: StageReport) -> None:
    report.fact("python", sys.version.split()[0])
    for package in _PACKAGES:
        report.fact(package, installed_version(package) or None)
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
