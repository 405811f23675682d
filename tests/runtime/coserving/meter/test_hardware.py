import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rose.config import DeviceConfig
from rose.runtime.coserving.meter.hardware import elsewhere, hardware_id
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.platform.gpu import mps
from tests.runtime.coserving.meter.nvml_library import Card, installed
from tests.runtime.coserving.parties import OtherParty

HOST = socket.gethostname()


def device(**where: Any) -> DeviceConfig:
    return DeviceConfig(id="d", pool="serving", device_class="c", kv_bytes=1, **where)


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


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


@pytest.fixture
def page(tmp_path: Path) -> Path:
    with closing(ArbiterPage.create(tmp_path / "page")) as page:
        return page.path


def test_a_process_that_none_of_the_device_s_cores_are_open_to_is_elsewhere(page: Path) -> None:
    first = min(os.sched_getaffinity(0))
    with OtherParty(page, Party.SERVING) as serving:
        assert elsewhere(device(cores=[first, 1000]), page, serving.pid) is None
        os.sched_setaffinity(serving.pid, {first})
        why = elsewhere(device(cores=[1000]), page, serving.pid)
        assert why is not None
        assert why.startswith(f"its process may use only cores {first}, which is not this device: ")
        # It has no such page: it is a process of another host, or container, that has this pid there.
        assert elsewhere(device(cores=[1000]), page, os.getppid()) is None
    assert elsewhere(device(cores=[1000]), page, serving.pid) is None, "it has ended"


@pytest.mark.parametrize(
    ("visible", "here", "named"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1, 2"}, {}, "GPU 1, 2"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "3,1"}, "GPU 0, 1"),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, {}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, {}, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "GPU-a"}, None),
        # It may number them in another way.
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_process_that_sees_other_gpus_alone_is_elsewhere(
    page: Path, monkeypatch: pytest.MonkeyPatch, visible: dict[str, str], here: dict[str, str], named: str | None
) -> None:
    holds = "import mmap, sys; file = open(sys.argv[1], 'r+b'); page = mmap.mmap(file.fileno(), 0); print(); input()"
    command = [sys.executable, "-c", holds, page]
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **visible}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        serving.stdout.readline()
        why = elsewhere(device(gpu=0), page, serving.pid)
        assert why is None if named is None else why is not None and named in why
        monkeypatch.setattr(mps, "daemon_runs", lambda _environment: True)
        assert elsewhere(device(gpu=0), page, serving.pid) is None
        serving.communicate(b"\n")
