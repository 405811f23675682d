from __future__ import annotations

import socket
from typing import Any

import pytest

from rose.config import DeviceConfig
from rose.runtime.coserving.meter.hardware import hardware_id
from tests.runtime.coserving.nvml_library import Card, installed

HOST = socket.gethostname()


def device(**where: Any) -> DeviceConfig:
    return DeviceConfig(id="d", pool="serving", device_class="c", kv_bytes=1, **where)


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_cores_are_their_numbers_on_their_host_in_whatever_order() -> None:
    assert hardware_id(device(cores=[8, 1, 0, 2])) == f"{HOST}/cores-0-2,8"
    assert hardware_id(device(cores=[5])) == f"{HOST}/cores-5"


def test_a_gpu_is_its_uuid_whatever_number_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(Card("a"), Card("b"), Card("m", mig=[1, 1])):
        assert [hardware_id(device(gpu=gpu)) for gpu in (0, 1, 2)] == ["GPU-a", "GPU-b", "MIG-m-1"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert hardware_id(device(gpu=0)) == "GPU-b"


def test_a_gpu_that_does_not_answer_is_its_number_on_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(Card("a", error=999)):
        assert hardware_id(device(gpu=0)) == f"{HOST}/gpu-0"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
        assert hardware_id(device(gpu=1)) == f"{HOST}/gpu-1"
