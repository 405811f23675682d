import errno
import json
import os
import shutil
import time

import pytest
import torch

from rose.runtime.coserving.questions import question, refusal
from rose.transfer.apply import aside, audit
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import StoreServer
from tests.runtime.coserving.hand_made_engine import (
    HandMadeEngine,
    LentDevice,
    corrupt,
    published,
    random_weights,
    stepped,
)

V0 = random_weights()
V1 = stepped(V0, 1)


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    store = published(tmp_path_factory.mktemp("store"), [V0, V1], tp=2)
    with StoreServer(store) as server:
        yield server.url


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    return request.param


@pytest.fixture
def engine(request, device, tmp_path):
    dtype = getattr(request, "param", torch.bfloat16)
    made = HandMadeEngine(tmp_path, V0, tp=2, dtype=dtype, device=device)
    made.dtype = dtype
    return made


in_both_types = pytest.mark.parametrize(
    "engine", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"], indirect=True
)


def stage(engine, origin, base=0):
    staged = Receiver(origin, None, engine.staging).fetch(1, base)
    (engine.staging / "v1").symlink_to(staged.folder.name)
    return staged


def held_to(engine, staged):
    (engine.staging / "held-1.json").write_bytes(staged.manifests[-1].to_bytes())


def ask(engine, verb, version=1):
    """Return (whether the verb was taken, reports of the ranks)."""
    if refusal(engine.post("/generate", question(verb, version))) is not None:
        return False, []
    paths = [engine.staging / f"{version}.{verb}.{rank}.json" for rank in engine.reached]
    deadline = time.monotonic() + 10
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.005)
    reports = [json.loads(path.read_text()) for path in paths]
    for path in paths:
        path.unlink()
    return True, reports


@in_both_types
def test_each_rank_swaps_its_part_in_when_told_to_and_not_before(engine, origin):
    staged = stage(engine, origin)
    taken, prepared = ask(engine, "prepare")
    assert taken
    assert [(report["ok"], report["ranks"]) for report in prepared] == [(True, 2)] * 2, prepared
    assert engine.holds(V0, engine.dtype)
    assert [updater.version for updater in engine.updaters] == [None, None]
    taken, committed = ask(engine, "commit")
    assert taken
    assert engine.holds(V1, engine.dtype)
    assert [updater.version for updater in engine.updaters] == [1, 1]
    assert [report["after_step"] for report in committed] == [7, 7]
    assert {report["sha256"] for report in committed} == {staged.manifests[-1].weights_sha256}


def test_no_rank_swaps_in_what_another_has_not_prepared(engine, origin):
    stage(engine, origin)
    engine.reached = [0]
    assert ask(engine, "prepare")[1][0]["ok"]
    engine.reached = [0, 1]
    assert ask(engine, "commit") == (False, [])
    assert engine.holds(V0, engine.dtype)


def test_a_rank_that_is_not_at_the_base_says_so_and_changes_nothing(engine, origin):
    stage(engine, origin)
    corrupt(engine, "model.layers.0.self_attn.qkv_proj.weight")
    _, (first, second) = ask(engine, "prepare")
    assert first["ok"]
    assert not second["ok"]
    assert "anchor" in second["reason"]
    assert ask(engine, "commit") == (False, [])


def test_an_audit_finds_the_rank_whose_weights_changed(engine, origin):
    held_to(engine, stage(engine, origin))
    ask(engine, "prepare")
    ask(engine, "commit")
    _, before = ask(engine, "audit")
    assert [report["drift"] for report in before] == [None, None]
    corrupt(engine, "model.layers.1.mlp.down_proj.weight", rank=1)
    _, after = ask(engine, "audit")
    assert after[0]["drift"] is None
    assert "down_proj" in after[1]["drift"]


@in_both_types
def test_what_is_held_is_read_back_once_and_then_known_by_its_fingerprints(engine, origin, monkeypatch):
    monkeypatch.setattr(aside, "FINGERPRINTED", ("cpu",))
    read = []
    find_drift = audit.find_drift
    monkeypatch.setattr(audit, "find_drift", lambda *given: read.append(given[1].version) or find_drift(*given))
    held_to(engine, stage(engine, origin))
    (engine.staging / "held-0.json").write_bytes(
        Receiver(origin, None, engine.staging).fetch(0, None).manifests[-1].to_bytes()
    )
    for _ in range(2):
        assert [report["drift"] for report in ask(engine, "audit", 0)[1]] == [None, None]
        assert read == [0, 0]  # Each of two ranks, once.
    ask(engine, "prepare")
    assert all(report["ok"] for report in ask(engine, "commit")[1])
    assert [report["drift"] for report in ask(engine, "audit")[1]] == [None, None]
    assert read == [0, 0]
    corrupt(engine, "model.layers.1.mlp.down_proj.weight", rank=1)
    assert "down_proj" in ask(engine, "audit")[1][1]["drift"]
    assert read == [0, 0, 1]
    # What was found once is not taken to be known.
    assert "down_proj" in ask(engine, "audit")[1][1]["drift"]


def test_a_weight_that_changes_between_prepare_and_commit_is_found_or_gone(engine, origin, device):
    stage(engine, origin)
    ask(engine, "prepare")
    corrupt(engine, "model.norm.weight", rank=1)
    _, (first, second) = ask(engine, "commit")
    assert first["ok"]
    if torch.device(device).type == "cpu":
        assert second["ok"]
        assert engine.holds(V1, engine.dtype)
    else:
        assert not second["ok"]
        assert "'model.norm.weight'" in second["reason"]


def test_a_report_whose_folder_is_gone_is_logged_and_the_engine_continues(engine, origin, caplog):
    shutil.rmtree(engine.staging)
    assert refusal(engine.post("/generate", question("prepare", 1))) is None
    for updater in engine.updaters:
        updater._background._thread.join(10)
        assert not updater.busy
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"][-1:]
    assert str(engine.staging / "1.prepare.") in warning
    assert os.strerror(errno.ENOENT) in warning
    engine.staging.mkdir()
    stage(engine, origin)
    ask(engine, "prepare")
    assert ask(engine, "commit")[0]
    assert engine.holds(V1, engine.dtype)


@pytest.fixture
def lent(tmp_path, device):
    shared = LentDevice()
    made = HandMadeEngine(
        tmp_path, V0, dtype=torch.float32, device=device, wait_for_device=shared.wait, record_span=shared.record
    )
    return made, shared


def test_each_tensor_is_prepared_hashed_and_audited_when_the_device_is_free_and_told_of(lent, origin):
    engine, device = lent
    held_to(engine, stage(engine, origin))
    for verb in ("prepare", "commit", "audit"):
        device.waits, device.spans = 0, []
        began = time.monotonic_ns()
        assert ask(engine, verb)[1][0]["ok"]
        # The published tensors are these and more.
        assert device.waits >= len(engine.ranks[0])
        assert device.spans
        flat = [at for span in device.spans for at in span]
        assert flat == sorted(flat)
        assert began <= flat[0]
        assert flat[-1] <= time.monotonic_ns()
    assert engine.holds(V1)


def test_the_swap_itself_does_not_wait(lent, origin):
    engine, device = lent
    stage(engine, origin)
    ask(engine, "prepare")
    device.open.clear()
    assert refusal(engine.post("/generate", question("commit", 1))) is None
    assert engine.holds(V1)
    assert not list(engine.staging.glob("1.commit.*.json"))
    device.open.set()
    engine.updaters[0]._background._thread.join(10)
    assert json.loads((engine.staging / "1.commit.0.json").read_text())["ok"]


@pytest.mark.parametrize("verb", ["prepare", "audit"])
def test_the_scheduler_waits_for_no_thread_that_waits_for_the_device(lent, origin, verb):
    engine, device = lent
    held_to(engine, stage(engine, origin))
    device.open.clear()
    assert refusal(engine.post("/generate", question(verb, 1))) is None
    assert device.asked.wait(10)
    first = engine.updaters[0]._background._thread
    assert refusal(engine.post("/generate", question("prepare", 1))) is None
    assert first.is_alive()
    device.open.set()
    engine.updaters[0]._background._thread.join(10)
    assert not first.is_alive()
    reports = [path.name for path in engine.staging.glob("1.*.json")]
    assert reports == ["1.prepare.0.json"]
    assert ask(engine, "commit")[1][0]["ok"]
    assert engine.holds(V1)


def test_with_cores_of_the_host_nothing_is_done_on_the_device_s(tmp_path, origin):
    core = max(os.sched_getaffinity(0))
    shared, places = LentDevice(), []
    engine = HandMadeEngine(
        tmp_path, V0, dtype=torch.bfloat16, wait_for_device=shared.wait, record_span=shared.record, host_cores=[core]
    )
    held_to(engine, stage(engine, origin))
    aside = engine.updaters[0]._aside
    engine.updaters[0]._aside = lambda: (places.append(os.sched_getaffinity(0)), aside())[1]
    before = os.sched_getaffinity(0)
    for verb in ("prepare", "commit", "audit"):
        assert ask(engine, verb)[1][0]["ok"]
    assert len(places) >= 3
    assert all(place == {core} for place in places)
    assert (shared.waits, shared.spans) == (0, [])
    assert os.sched_getaffinity(0) == before
    assert engine.holds(V1, torch.bfloat16)
