"""NVIDIA's Multi-Process Service, where the host's owner runs its daemon: a lent engine ranks below serving."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_PIPES_DEFAULT = "/tmp/nvidia-mps"
_BELOW_NORMAL = "1"
_MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CUDA 12.3 and later.


def daemon_runs(environment: Mapping[str, str] = os.environ) -> bool:
    return (Path(environment.get(_PIPES) or _PIPES_DEFAULT) / "control").exists()


def client_environment(compute_share: float, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return a lent engine's variables: low priority, and at most `compute_share` (0 to 1) of the GPU."""
    if not daemon_runs(environment):
        return {}
    client = {"CUDA_MPS_CLIENT_PRIORITY": _BELOW_NORMAL}
    if compute_share < 1:
        client["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, round(100 * compute_share)))
    return client


def in_use(index: int) -> bool:
    """Return whether this process shares the GPU with CUDA index `index` through the service; False if unknown."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, enabled = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return False
    return driver.cuDeviceGetAttribute(ctypes.byref(enabled), _MPS_ENABLED, device) == 0 and enabled.value == 1
