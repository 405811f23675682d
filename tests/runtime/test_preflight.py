import socket

import pytest

from rose.runtime import preflight
from rose.runtime.platform import gpu
from rose.runtime.preflight import PreflightError
from rose.runtime.service.up import up
from tests.runtime.test_memory_plan import fleet


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setattr(gpu, "has_kernels", lambda: False)
    monkeypatch.setenv(gpu.NATIVE_KERNELS, "1")


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (fleet(lent={"serving_url": "http://127.0.0.1:30000"}), "device 'lent' has a serving_url"),
        (fleet(traffic={"trace": "none"}), "traffic.trace is 'none'"),
    ],
)
def test_stand_ins_for_kernels_are_refused_where_real_requests_are_served(native, monkeypatch, made, named):
    with pytest.raises(PreflightError) as caught:
        preflight._check_kernels(made)
    assert f"ROSE_NATIVE_KERNELS=1 is set, and {named}" in str(caught.value)
    monkeypatch.setattr(gpu, "has_kernels", lambda: True)
    preflight._check_kernels(made)


def test_a_place_that_nothing_can_be_archived_to_is_refused(tmp_path):
    for to, said in ((f"{tmp_path}/books/cold", "lies in the ledger"), ("nowhere://bucket", "Protocol not known")):
        made = fleet(ledger=tmp_path / "books", archive={"to": to, "after_days": 90.0})
        with pytest.raises(PreflightError, match=f"^archive.to '{to}': .*{said}"):
            preflight.check_archive(made)
    preflight.check_archive(fleet(ledger=tmp_path / "books", archive={"to": f"{tmp_path}/cold", "after_days": 90.0}))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name in ("_check_packages", "_check_devices", "_check_models", "_check_memory"):
        monkeypatch.setattr(preflight, name, lambda _config=None: None)
    return {name: tmp_path / name for name in ("state", "ledger", "cache")}


def test_the_port_of_each_serving_device_has_to_be_free(folders, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        made = fleet(gpus=False, lent={"serving_model": "chat"}, serving_models={"chat": {"port": port}})
        made = made.model_copy(update=folders)
        with pytest.raises(PreflightError, match=f"port {port} for device 'lent' cannot be used"):
            preflight.check_host(made)
        attached = made.device[0].model_copy(update={"serving_url": f"http://127.0.0.1:{port}"})
        monkeypatch.setattr(preflight, "check_serving", lambda _devices: None)
        preflight.check_host(made.model_copy(update={"device": [attached, made.device[1]]}))


def test_a_host_that_serves_nothing_needs_no_trace(folders, tmp_path):
    made = fleet(gpus=False, traffic={"trace": str(tmp_path / "nope.csv")}).model_copy(update=folders)
    with pytest.raises(PreflightError, match=rf"^cannot read trace {tmp_path}/nope\.csv: "):
        preflight.check_host(made)
    preflight.check_host(made.model_copy(update={"device": made.device[1:]}))


def test_a_fleet_on_stand_ins_for_kernels_says_so_first(native):
    made = fleet(traffic={"trace": "bursty"})
    preflight._check_kernels(made)
    assert preflight.notice(made).startswith("STAND-IN KERNELS")


def test_an_error_comes_before_anything_is_started(tmp_path):
    made = fleet(gpus=False, lent={"cores": [999]}).model_copy(update={"state": tmp_path / "state"})
    with pytest.raises(PreflightError, match=r"device 'lent': cores \[999\] are not available"):
        up(made, None, pytest.fail)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("field", ["state", "ledger", "cache"])
def test_a_folder_that_cannot_be_made_is_named_with_its_field(tmp_path, field):
    (tmp_path / "file").touch()
    folders = {name: tmp_path / name for name in ("state", "ledger", "cache")} | {field: tmp_path / "file" / "nope"}
    with pytest.raises(PreflightError, match=f"{tmp_path}/file/nope.* set `{field}` "):
        preflight._check_folders(fleet(gpus=False).model_copy(update=folders))


@pytest.mark.parametrize("section", ["serving", "rollout"])
def test_a_model_that_cannot_be_there_is_named_with_its_field(tmp_path, section):
    for model, wrong in ((str(tmp_path / "nope"), "nor a folder"), (str(tmp_path), "without config.json")):
        made = fleet(gpus=False, **{section: {"model": model}})
        with pytest.raises(PreflightError, match=f"{section}.model: model '{model}' is .*{wrong}"):
            preflight._check_models(made)
    preflight._check_models(fleet(gpus=False, **{section: {"model": "owner/model"}}))


def test_a_gpu_host_without_kernels_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(gpu, "has_kernels", lambda: False)
    monkeypatch.delenv(gpu.NATIVE_KERNELS, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(PreflightError, match="pip install sglang-kernel"):
        preflight._check_devices(fleet())
    with pytest.raises(PreflightError, match="GPU 7 is not there; this host has 2"):
        preflight._check_devices(fleet(lent={"gpu": 7}))


@pytest.mark.parametrize(
    ("wrong", "named"), [({"traffic": {"trace": "nope.csv"}}, r"nope\.csv"), ({"cache": "/proc/nope"}, "/proc/nope")]
)
def test_what_is_wrong_in_the_file_is_said_before_what_the_host_is_short_of(tmp_path, monkeypatch, wrong, named):
    monkeypatch.setattr(preflight, "ENGINE_BYTES", 1 << 60)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PreflightError, match=named):
        preflight.check(fleet(gpus=False, state="state", ledger="ledger", **wrong))
