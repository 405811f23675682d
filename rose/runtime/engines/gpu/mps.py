"""NVIDIA's Multi-Process Service, where the host's owner runs it: work of several processes is on a GPU at once.

ROSE starts no daemon. Where one runs, a lent rollout engine is told by its environment to come after serving.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

#: Where the daemon and its clients meet.
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_PIPES_DEFAULT = "/tmp/nvidia-mps"
_BELOW_NORMAL = "1"
#: CU_DEVICE_ATTRIBUTE_MPS_ENABLED: contexts made on this device are shared through the service (CUDA 12.3 and later).
_MPS_ENABLED = 133


def daemon_runs(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the control daemon has its pipe where a client of this environment looks for it."""
    return (Path(environment.get(_PIPES) or _PIPES_DEFAULT) / "control").exists()


def client_environment(compute_share: float, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a lent rollout engine: below serving's priority, and, with `compute_share` (0 to 1) below 1,
    on no larger share of the GPU's multiprocessors. Empty where no daemon runs."""
    if not daemon_runs(environment):
        return {}
    client = {"CUDA_MPS_CLIENT_PRIORITY": _BELOW_NORMAL}
    if compute_share < 1:
        client["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, round(100 * compute_share)))
    return client


def in_use(index: int) -> bool:
    """Whether contexts of this process on the GPU with this CUDA index are shared through the service. False where the
    driver is too old to say so, or there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, enabled = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return False
    return driver.cuDeviceGetAttribute(ctypes.byref(enabled), _MPS_ENABLED, device) == 0 and enabled.value == 1
