import json
from dataclasses import replace
from pathlib import Path

import pytest

from rose import config
from rose.runtime import memory_plan, preflight
from rose.runtime.memory_plan import (
    CORES_ROLLOUT_TOKENS,
    CORES_SERVING_TOKENS,
    ROLLOUT_WORKSPACE_BYTES,
    SERVING_WORKSPACE_BYTES,
    DeviceMemoryError,
    MemoryPlan,
)
from rose.runtime.models.models import weights_bytes
from rose.runtime.platform import cpu
from tests.runtime.loads import LLAMA_8B

GIB = 1 << 30
TOKEN_BYTES = 131072


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def fleet(*, gpus=True, lent=None, dedicated=None, **sections):
    device = {"device_class": "h100-sxm", "kv_bytes": 20 * GIB}
    places = ({"gpu": 0}, {"gpu": 1}) if gpus else ({"cores": [0]}, {"cores": [1]})
    return config.FleetConfig.model_validate(
        {
            "device": [
                {"id": "lent", "pool": "serving", **places[0], **device, **(lent or {})},
                {"id": "own", "pool": "rollout", **places[1], **device, **(dedicated or {})},
            ],
            **sections,
        }
    )


def plan(made, model):
    rollouts = dict.fromkeys((rollout.model for rollout in made.rollouts.values()), model)
    return MemoryPlan(config=made, serving_models={made.serving.model: model}, rollout_models=rollouts)


def test_pools_on_a_gpu_are_as_large_as_its_kv_bytes(model):
    made = fleet(coserving={"headroom": 0.25})
    lent, own = made.device
    memory = plan(made, model)
    assert memory.serving_tokens(lent) == 20 * GIB // TOKEN_BYTES
    assert memory.rollout_tokens(lent, made.rollout) == 15 * GIB // TOKEN_BYTES
    assert memory.rollout_tokens(own, made.rollout) == 20 * GIB // TOKEN_BYTES


def test_a_device_is_planned_for_the_model_that_it_serves(model, tmp_path):
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text(json.dumps({**LLAMA_8B, "num_hidden_layers": LLAMA_8B["num_hidden_layers"] // 2}))
    chat = {"model": "half", "max_total_tokens": None}
    made = fleet(lent={"serving_model": "chat"}, serving_models={"chat": chat}, serving={"max_total_tokens": 7})
    memory = replace(plan(made, model), serving_models={made.serving.model: model, "half": half})
    lent, _ = made.device
    assert memory.serving_bytes_per_token(lent) == TOKEN_BYTES // 2
    assert memory.serving_tokens(lent) == 2 * (20 * GIB // TOKEN_BYTES)
    assert memory.parts(lent, made.rollout)[0].kv_bytes == 20 * GIB


def test_pools_on_cores_stay_as_they_were(model):
    made = fleet(gpus=False)
    memory = plan(made, model)
    assert memory.serving_tokens(made.device[0]) == CORES_SERVING_TOKENS == 8192
    assert {memory.rollout_tokens(device, made.rollout) for device in made.device} == {CORES_ROLLOUT_TOKENS} == {32768}
    assert memory.serving_bytes_per_token(made.device[0]) == TOKEN_BYTES * (2 if cpu.dtype() == "float32" else 1)


def test_a_pool_that_the_file_gives_wins(model):
    small = fleet(serving={"max_total_tokens": 8192}, rollout={"max_total_tokens": 32768})
    memory = plan(small, model)
    lent = small.device[0]
    assert (memory.serving_tokens(lent), memory.rollout_tokens(lent, small.rollout)) == (8192, 32768)


def test_the_parts_of_a_device_are_what_the_run_will_start_on_it(model):
    attached, alone = fleet(lent={"serving_url": "http://127.0.0.1:30000"}), fleet(coserving={"enabled": False})
    for made, number, names in (
        (attached, 0, ["rollout"]),
        (attached, 1, ["rollout", "trainer"]),
        (alone, 0, ["serving"]),
    ):
        assert [part.name for part in plan(made, model).parts(made.device[number], made.rollout)] == names
    both = fleet()
    serving, rollout = plan(both, model).parts(both.device[0], both.rollout)
    assert serving.total_bytes == weights_bytes(model) + 20 * GIB + SERVING_WORKSPACE_BYTES
    assert rollout.total_bytes == pytest.approx(
        weights_bytes(model) + 16 * GIB + ROLLOUT_WORKSPACE_BYTES, abs=TOKEN_BYTES
    )


def test_a_host_whose_gpus_all_serve_has_no_trainer(model):
    made = fleet(lent={"serving_url": "http://127.0.0.1:30000"})
    lent = made.device[0]
    of_host = plan(made.model_copy(update={"device": [lent]}), model)
    assert [part.name for part in of_host.parts(lent, made.rollout)] == ["rollout"]
    of_host.check(lent, 40 * GIB)
    assert 0 < of_host.memory_fraction(lent, made.rollout, "rollout", 40 * GIB) < 1


def test_a_gpu_without_room_is_named_with_what_is_free_and_what_each_part_takes(model):
    made = fleet(lent={"kv_bytes": 40 * GIB})
    with pytest.raises(DeviceMemoryError) as caught:
        plan(made, model).check(made.device[0], 79 * GIB)
    message = str(caught.value)
    assert "device 'lent': 79.0 GiB are free on GPU 0, and 111.9 GiB are needed" in message
    assert "serving: weights 15.0, KV 40.0, graphs and workspace 6.0 (allowance)" in message
    assert "rollout: weights 15.0, KV 32.0, graphs and workspace 4.0 (allowance)" in message
    assert "Lower kv_bytes (42949672960)" in message
    plan(made, model).check(made.device[0], 112 * GIB)

    given = fleet(serving={"max_total_tokens": 500_000})
    with pytest.raises(DeviceMemoryError, match="or max_total_tokens, or end other programs on"):
        plan(given, model).check(given.device[0], 79 * GIB)


def test_a_device_has_room_for_each_rollout_model_and_the_one_that_does_not_fit_is_named(model, tmp_path):
    large = tmp_path / "large"
    large.mkdir()
    (large / "config.json").write_text(json.dumps({**LLAMA_8B, "num_hidden_layers": 2 * LLAMA_8B["num_hidden_layers"]}))
    made = fleet(rollout_models={"large": {"model": "large", "max_concurrent": 9}})
    lent, own = made.device
    memory = replace(plan(made, model), rollout_models={made.rollout.model: model, "large": large})
    other = made.rollout_models["large"]
    assert memory.rollout_bytes_per_token(lent, other) == 2 * memory.rollout_bytes_per_token(lent, made.rollout)
    assert memory.rollout_tokens(lent, other) == memory.rollout_tokens(lent, made.rollout) // 2
    needed = [sum(part.total_bytes for part in memory.parts(lent, rollout)) for rollout in made.rollouts.values()]
    memory.check(lent, max(needed))
    with pytest.raises(DeviceMemoryError) as caught:
        memory.check(lent, max(needed) - 1)
    assert "needed with rollout model 'large'. In GiB" in str(caught.value)
    trainer = [memory.parts(own, rollout)[-1].weights_bytes for rollout in made.rollouts.values()]
    assert trainer == [8 * weights_bytes(large)] * 2, "whichever model is trained there"


def test_a_serving_engine_of_several_ranks_is_not_taken_for_one_of_one_gpu(model):
    made = fleet(coserving={"enabled": False}, serving={"extra_args": ["--tp-size=2"]})
    plan(made, model).check(made.device[0], 10 * GIB)


def test_kv_bytes_that_hold_no_token_are_refused(model):
    made = fleet(lent={"kv_bytes": 100_000})
    with pytest.raises(DeviceMemoryError, match="kv_bytes 100000 cannot hold a serving token"):
        plan(made, model).check(made.device[0], 79 * GIB)


def test_each_engine_may_take_what_it_needs_of_what_is_free_when_it_starts(model):
    made = fleet()
    lent = made.device[0]
    memory = plan(made, model)
    before_bytes = free_bytes = sum(part.total_bytes for part in memory.parts(lent, made.rollout))
    for part in memory.parts(lent, made.rollout):
        fraction = memory.memory_fraction(lent, made.rollout, part.name, before_bytes)
        assert free_bytes * fraction - part.weights_bytes >= part.kv_bytes
        assert free_bytes * (1 - fraction) == pytest.approx(part.workspace_bytes, rel=0.02)
        free_bytes -= part.total_bytes
    assert memory.memory_fraction(lent, made.rollout, "serving", 10_000 * GIB) == 0.98
    assert memory.memory_fraction(lent, made.rollout, "serving", 0) == 0.05
    with pytest.raises(ValueError, match="no engine 'other'"):
        memory.memory_fraction(lent, made.rollout, "other", free_bytes)


def test_free_memory_is_asked_of_the_gpus_of_the_fleet_alone(model, monkeypatch):
    asked = []

    def answer(gpus):
        asked.append(list(gpus))
        return dict.fromkeys(gpus, 300 * GIB)

    monkeypatch.setattr(memory_plan, "free_memory", answer)
    assert preflight.check_gpus(plan(fleet(), model)) == {"lent": 300 * GIB, "own": 300 * GIB}
    assert preflight.check_gpus(plan(fleet(gpus=False), model)) == {}
    assert asked == [[0, 1]]
    monkeypatch.setattr(memory_plan, "free_memory", lambda gpus: dict.fromkeys(gpus, 20 * GIB))
    with pytest.raises(preflight.PreflightError, match=r"device 'lent': 20\.0 GiB are free on GPU 0"):
        preflight.check_gpus(plan(fleet(), model))
    with pytest.raises(preflight.PreflightError, match=r"config\.json"):
        preflight.check_gpus(plan(fleet(), Path("nowhere")))
