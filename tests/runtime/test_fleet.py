import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rose import config
from rose.clock import Anchor
from rose.config import RequestClassConfig, ServingConfig
from rose.config.example import demo
from rose.runtime.coserving.kv.activation import LEASED_ARGUMENTS
from rose.runtime.engines.adoption import spec_sha256
from rose.runtime.engines.door import Door, addresses
from rose.runtime.fleet import FleetPlan, recorded_config
from rose.runtime.host_plan import HostPlan
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.policy.slack import Budgets
from rose.runtime.rollout import vocabulary

SHAPE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 1000,
}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    return tmp_path


@pytest.fixture
def fleet():
    return demo([0, 1], ledger=Path("x"))


def plan(fleet, model):
    return FleetPlan(
        host=HostPlan(config=fleet, host="local", run_id="run", controller_url="http://127.0.0.1:1"),
        memory=MemoryPlan(
            config=fleet,
            serving_models=dict.fromkeys((fleet.serving.model, "chat-model"), model),
            rollout_models=dict.fromkeys((fleet.rollout.model, "other-model"), model),
        ),
        anchor=Anchor(0),
    )


def test_an_agent_promises_what_its_device_s_table_says(fleet, model):
    first, *_ = fleet.device
    usual, urgent = {"ttft_budget_ms": 500.0, "tpot_budget_ms": 50.0}, {"ttft_budget_ms": 200.0, "tpot_budget_ms": 20.5}
    serving = ServingConfig(**usual, classes=[RequestClassConfig(priority=-1, **urgent)])
    spec = plan(fleet.model_copy(update={"serving": serving}), model).agent_spec(first)
    urgent_ns = Budgets(200_000_000, 20_500_000)
    assert spec.budgets == Budgets(500_000_000, 50_000_000, classes={-1: urgent_ns})
    assert spec.budgets.of(-1) == urgent_ns


def test_each_device_serves_and_promises_what_its_own_table_says(fleet, model):
    chat = ServingConfig(model="chat-model", ttft_budget_ms=300, max_prompt_tokens=99, max_total_tokens=70, port=9200)
    second = fleet.device[0].model_copy(update={"id": "serving-1", "cores": [2], "serving_model": "chat"})
    update = {"device": [*fleet.device, second], "serving_models": {"chat": chat}}
    fleet_plan = plan(fleet.model_copy(update=update), model)
    served = fleet_plan.serving(second)
    spec = fleet_plan.agent_spec(second)
    assert (served.model_name, served.port, served.max_total_tokens) == ("chat-model", 9201, 70)
    assert (spec.serving_model, spec.max_prompt_tokens) == ("chat-model", 99)
    assert spec.budgets == Budgets(300_000_000, 50_000_000)
    assert fleet_plan.agent_spec(fleet.device[0]).serving_model == fleet.serving.model


def test_other_hosts_reach_rollout_engines_through_a_door_and_serving_not_at_all(fleet, model):
    fleet_plan = replace(plan(fleet, model), door=Door("127.0.0.3", "secret"))
    serving = fleet_plan.serving(fleet.device[0])
    rollout = fleet_plan.agent_spec(fleet.device[0]).rollout
    assert rollout.url == f"http://127.0.0.1:{rollout.port}"
    assert rollout.outer_url == f"http://127.0.0.3:{rollout.port}"
    assert replace(rollout, door=Door("::1", "secret")).outer_url == f"http://[::1]:{rollout.port}"
    assert addresses(serving.door) == ["127.0.0.1"]
    assert addresses(rollout.door) == ["127.0.0.1", "127.0.0.3"]
    assert serving.outer_url == serving.url


def test_a_serving_device_serves_and_lends_a_rollout_device_only_rolls_out(fleet, model):
    fleet_plan = plan(fleet, model)
    serving = fleet_plan.serving(fleet.device[0])
    lends, dedicated = map(fleet_plan.agent_spec, fleet.device)
    assert not serving.plugin.gated
    assert lends.rollout.plugin.gated
    assert lends.rollout.nice > serving.nice  # the lent engine gives way on the core they share
    assert lends.serving_engine_id == "serving-0-serving"
    assert not dedicated.rollout.plugin.gated
    assert lends.rollout.plugin.page == lends.page
    assert serving.plugin.page is None  # It gets its page like the server of another owner.
    assert lends.page != dedicated.page
    assert lends.serving_kv_bytes_per_token in (2 * 3 * 2 * 64 * 2, 2 * 3 * 2 * 64 * 4)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_rollout_engines_have_a_tokenizer_if_the_model_has_one_unless_told_otherwise(fleet, model, there, wanted):
    fleet = fleet.model_copy(update={"rollout": fleet.rollout.model_copy(update={"tokenizer": wanted})})
    if there:
        vocabulary.save_tokenizer(model)
    rollout = plan(fleet, model).agent_spec(fleet.device[1]).rollout
    assert rollout.token_ids_only is not (there and wanted)


def test_a_rollout_model_without_a_tokenizer_is_said(fleet, model):
    said = []
    fleet = fleet.model_copy(update={"rollout": fleet.rollout.model_copy(update={"model": str(model)}), "device": []})
    MemoryPlan.resolve(fleet, said.append)
    vocabulary.save_tokenizer(model)
    MemoryPlan.resolve(fleet, said.append)
    assert len(said) == 1


def test_only_what_computes_runs_on_the_cores_of_a_serving_device(fleet, model, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})
    fleet_plan = plan(fleet, model)
    served = fleet_plan.serving(fleet.device[0])
    lends, dedicated = map(fleet_plan.agent_spec, fleet.device)
    assert set(served.host_cores) == set(lends.rollout.host_cores) == {0, 1, 2} - set(served.cores)
    assert lends.rollout.start_cores == lends.rollout.host_cores
    assert lends.rollout.idle_class
    assert not served.idle_class
    assert not served.start_cores
    assert dedicated.rollout.idle_class
    assert not dedicated.rollout.host_cores
    assert dedicated.rollout.start_cores == lends.rollout.host_cores


def test_without_coserving_nothing_is_lent(fleet, model):
    fleet = fleet.model_copy(update={"coserving": config.CoservingConfig(enabled=False)})
    fleet_plan = plan(fleet, model)
    lends, dedicated = map(fleet_plan.agent_spec, fleet.device)
    assert (lends.rollout, lends.models) == (None, {})
    assert dedicated.rollout is not None


def test_an_agent_has_an_engine_for_each_rollout_model(fleet, model):
    other = config.RolloutConfig(model="other-model", max_concurrent=3, max_total_tokens=99)
    fleet = fleet.model_copy(update={"rollout_models": {"other": other}})
    for device in fleet.device:
        spec = plan(fleet, model).agent_spec(device)
        assert list(spec.models) == [fleet.rollout.model, "other-model"]
        changed = spec.with_model("other-model")
        assert (changed.rollout.model_name, changed.rollout.capacity) == ("other-model", 3)
        assert changed.rollout.max_total_tokens == 99
        assert "--max-running-requests=3" in changed.rollout.extra_args
        assert changed.rollout.engine_id == spec.rollout.engine_id
        assert changed.rollout.port != spec.rollout.port
        assert spec_sha256(changed.rollout) != spec_sha256(spec.rollout)
        assert changed.with_model(fleet.rollout.model).rollout == spec.rollout


def test_serving_ports_count_up_from_the_configured_one(fleet, model):
    more = fleet.device[0].model_copy(update={"id": "serving-1", "cores": [2]})
    serving = fleet.serving.model_copy(update={"port": 9100})
    fleet_plan = plan(fleet.model_copy(update={"device": [*fleet.device, more], "serving": serving}), model)
    assert [fleet_plan.serving(device).port for device in (fleet.device[0], more)] == [9100, 9101]


def test_an_engine_that_is_to_leave_a_lent_gpu_is_started_so_that_it_can(fleet, model):
    fleet = fleet.model_copy(update={"coserving": config.CoservingConfig(activation="leased")})
    for device, leased in (
        (fleet.device[0].model_copy(update={"gpu": 0}), True),
        (fleet.device[1].model_copy(update={"gpu": 0}), False),
        (fleet.device[0], False),
    ):
        arguments = plan(fleet, model).agent_spec(device).rollout.extra_args
        assert set(LEASED_ARGUMENTS).issubset(arguments) == leased


def test_engines_of_a_gpu_take_their_pools_and_shares_from_its_kv_bytes(fleet, model):
    lent, dedicated = (device.model_copy(update={"gpu": number}) for number, device in enumerate(fleet.device))
    fleet = fleet.model_copy(update={"device": [lent, dedicated]})
    fleet_plan = replace(plan(fleet, model), free_bytes={lent.id: 79 << 30, dedicated.id: 79 << 30})
    served = fleet_plan.serving(lent)
    token_bytes = 2 * 3 * 2 * 64 * 2
    assert served.max_total_tokens == lent.kv_bytes // token_bytes
    assert fleet_plan.agent_spec(lent).rollout.max_total_tokens == int(lent.kv_bytes * 0.8) // token_bytes
    own = fleet_plan.agent_spec(dedicated).rollout
    assert own.max_total_tokens == dedicated.kv_bytes // token_bytes
    assert "--sleep-on-idle" in own.extra_args
    assert "--disable-overlap-schedule" not in own.extra_args
    for spec in (served, own, fleet_plan.agent_spec(lent).rollout):
        assert [argument for argument in spec.extra_args if argument.startswith("--mem-fraction-static=0.9")]


def test_what_the_fleet_file_says_of_memory_comes_last(fleet, model):
    lent = fleet.device[0].model_copy(update={"gpu": 0})
    serving = ServingConfig(extra_args=["--mem-fraction-static=0.5"])
    fleet = fleet.model_copy(update={"device": [lent, fleet.device[1]], "serving": serving})
    arguments = replace(plan(fleet, model), free_bytes={lent.id: 79 << 30}).serving(lent).extra_args
    assert arguments[-1] == "--mem-fraction-static=0.5"


def test_the_fork_server_that_has_sglang_for_cores_forks_no_engine_of_a_gpu(fleet, model):
    forks = replace(plan(fleet, model), fork_server=Path("socket"), free_bytes={"serving-0": 80 << 30})
    lent, dedicated = fleet.device
    lent = lent.model_copy(update={"gpu": 0})
    serving = forks.serving(lent)
    engines = (serving, forks.agent_spec(lent).rollout, forks.agent_spec(dedicated).rollout)
    assert [spec.fork_server for spec in engines] == [None, None, Path("socket")]


def test_where_the_owner_runs_mps_a_lent_engine_comes_after_serving(fleet, model, tmp_path, monkeypatch):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    fleet = fleet.model_copy(update={"coserving": config.CoservingConfig(compute_share=0.25)})
    lent, dedicated = (device.model_copy(update={"gpu": number}) for number, device in enumerate(fleet.device))
    environment = plan(fleet, model).agent_spec(lent).rollout.environment
    assert environment == {"CUDA_MPS_CLIENT_PRIORITY": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    for device in (dedicated, fleet.device[0]):
        assert plan(fleet, model).agent_spec(device).rollout.environment == {}


def test_a_run_records_the_digest_of_its_price_book(tmp_path):
    made = demo([0, 1], ledger=tmp_path)
    recorded = json.loads(recorded_config(made))
    assert (recorded["price_book"], "price_book_sha256" in recorded) == ("example", False)
    assert "token" not in recorded["gateway"]
    book = tmp_path / "book.toml"
    book.write_bytes(b"name = 1")
    recorded = json.loads(recorded_config(made.model_copy(update={"price_book": str(book)})))
    assert recorded["price_book_sha256"] == hashlib.sha256(b"name = 1").hexdigest()


def test_two_plans_of_a_fleet_ask_for_the_same_engine_which_may_outlive_its_agent(fleet, model):
    device = fleet.device[0]
    specs = [replace(plan(fleet, model), orphan_s=60.0).agent_spec(device).rollout for _ in range(2)]
    assert specs[0].port != specs[1].port
    assert spec_sha256(specs[0]) == spec_sha256(specs[1])
    assert {spec.orphan_s for spec in specs} == {60.0}
    assert plan(fleet, model).agent_spec(device).rollout.orphan_s is None
