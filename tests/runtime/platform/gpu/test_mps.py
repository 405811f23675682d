import ctypes
import os
import subprocess
from types import SimpleNamespace

import pytest

from rose.runtime.platform.gpu import mps


@pytest.fixture
def pipes(tmp_path):
    (tmp_path / "control").touch()
    return {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}


def test_without_a_daemon_an_engine_is_told_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(mps, "_PIPES_DEFAULT", str(tmp_path / "none"))
    assert mps.client_environment(0.5, {}) == {}
    assert mps.client_environment(0.5, {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) == {}


def test_a_lent_engine_comes_after_serving_and_keeps_to_its_share(pipes, monkeypatch):
    assert mps.client_environment(1.0, pipes) == {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    assert mps.client_environment(0.5, pipes)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    # 0 would be taken for no limit.
    assert mps.client_environment(0.001, pipes)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"
    monkeypatch.setattr(mps, "_PIPES_DEFAULT", pipes["CUDA_MPS_PIPE_DIRECTORY"])
    assert mps.daemon_runs({})


class Driver:
    def __init__(self, answer, devices=1):
        self._answer, self._devices = answer, devices

    def cuInit(self, _flags):
        return 0

    def cuDeviceGet(self, _device, index):
        return 0 if index < self._devices else 101

    def cuDeviceGetAttribute(self, value, attribute, _device):
        assert attribute == 133
        value._obj.value = self._answer[1]
        return self._answer[0]


@pytest.mark.parametrize(
    ("answer", "index", "used"), [((0, 1), 0, True), ((0, 0), 0, False), ((1, 1), 0, False), ((0, 1), 1, False)]
)
def test_it_is_in_use_where_the_driver_says_so(monkeypatch, answer, index, used):
    monkeypatch.setattr(mps, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": lambda _name: Driver(answer)}))
    assert mps.in_use(index) is used


def test_a_host_without_a_driver_has_none(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(mps, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": missing}))
    assert not mps.in_use(0)


CONTROL = """#!/bin/sh
read command
echo "$command" >> {log}
case "$command" in
    get_server_list) echo 77 ;;
    "get_client_list 77") echo {own}; echo {other} ;;
esac
"""


def test_a_group_is_ended_at_the_daemon_before_it_is_killed_and_no_other_client(pipes, tmp_path):
    """With a program that answers as NVIDIA's manual says: the real one needs a GPU."""
    own = subprocess.Popen(["sleep", "60"], start_new_session=True)
    log, program = tmp_path / "log", tmp_path / "nvidia-cuda-mps-control"
    program.write_text(CONTROL.format(log=log, own=own.pid, other=os.getpid()))
    program.chmod(0o755)
    try:
        mps.end_clients(own.pid, {**pipes, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
        asked = log.read_text().splitlines()
        log.unlink()
        mps.end_clients(own.pid, {**pipes, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "none")})
    finally:
        own.kill()
        own.wait()
    assert asked == ["get_server_list", "get_client_list 77", f"terminate_client 77 {own.pid}"]
    assert not log.exists(), "without a daemon nobody is asked"
    mps.end_clients(own.pid, {**pipes, "PATH": str(tmp_path / "none")})
