import ctypes
from types import SimpleNamespace

import pytest

from rose.runtime.engines.gpu import mps


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
    """libcuda, as far as it is asked; `answer` is (result, value) of the attribute."""

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
