"""Uses NVIDIA's Multi-Process Service (MPS), if the owner runs it, to give rollouts a lower priority than serving."""

import ctypes
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_PIPES_DEFAULT = "/tmp/nvidia-mps"
_BELOW_NORMAL = "1"
_CONTROL = "nvidia-cuda-mps-control"
_CONTROL_TIMEOUT_S = 5.0
_MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CUDA 12.3 and later.


def daemon_runs(environment: Mapping[str, str] = os.environ) -> bool:
    return (Path(environment.get(_PIPES) or _PIPES_DEFAULT) / "control").exists()


def client_environment(compute_share: float, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the MPS variables of an engine on a lent GPU: low priority, and at most `compute_share` of the GPU."""
    if not daemon_runs(environment):
        return {}
    client = {"CUDA_MPS_CLIENT_PRIORITY": _BELOW_NORMAL}
    if compute_share < 1:
        client["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, round(100 * compute_share)))
    return client


def in_use(index: int) -> bool:
    """Return whether this process is known to share the GPU through MPS."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, enabled = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return False
    return driver.cuDeviceGetAttribute(ctypes.byref(enabled), _MPS_ENABLED, device) == 0 and enabled.value == 1


def end_clients(group: int, environment: Mapping[str, str] = os.environ) -> None:
    """End the MPS clients of a process group. Call this before a kill, whose effects on MPS clients are undefined."""
    if not daemon_runs(environment):
        return
    with suppress(OSError, subprocess.SubprocessError):
        for server in _control("get_server_list", environment):
            for client in _control(f"get_client_list {server}", environment):
                with suppress(ProcessLookupError):
                    if os.getpgid(int(client)) == group:
                        _control(f"terminate_client {server} {client}", environment)


def _control(command: str, environment: Mapping[str, str]) -> list[str]:
    done = subprocess.run(
        [_CONTROL],
        input=f"{command}\n",
        env=environment,
        capture_output=True,
        text=True,
        timeout=_CONTROL_TIMEOUT_S,
        check=False,
    )
    return [word for word in done.stdout.split() if word.isdigit()]
