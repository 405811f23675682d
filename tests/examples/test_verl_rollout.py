"""The example with verl itself: its manager updates weights, its server generates. Without verl, nothing is checked."""

import asyncio
import importlib
from pathlib import Path

import pytest
import torch

from rose.runtime.platform.cpu import define_torchvision
from tests.client.fleet import Engine, Fetching, fleet

PROGRAM = Path(__file__).parents[2] / "examples" / "verl_rollout.py"


@pytest.fixture
def example(monkeypatch):
    pytest.importorskip("tensordict", reason="verl is not installed: pip install verl, in an environment of its own")
    define_torchvision()
    pytest.importorskip("verl", reason="verl is not installed: pip install verl, in an environment of its own")
    ray = pytest.importorskip("ray")
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    monkeypatch.setenv("PYTHONPATH", f"{PROGRAM.parent}:{PROGRAM.parents[1]}")
    yield importlib.import_module("verl_rollout")
    ray.shutdown()


def test_verl_generates_and_updates_weights_on_a_fleet(example, tmp_path, monkeypatch):
    import ray
    from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
    from verl.workers.config import CheckpointEngineConfig, HFModelConfig, RolloutConfig
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    class Actor(Worker):
        """What verl's trainers do with a checkpoint engine."""

        def __init__(self, is_master):
            import verl_rollout  # noqa: F401

            self.checkpoint_engine = CheckpointEngineRegistry.new("rose", is_master=is_master, bucket_size=1)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
        async def update_weights(self, global_steps, mode):
            weights = iter([("weight", torch.full((64,), float(global_steps)))])
            return await self.checkpoint_engine.send_weights(weights, global_steps=global_steps) or {}

        @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
        def execute_checkpoint_engine(self, method, *arguments, **options):
            return getattr(self.checkpoint_engine, method)(*arguments, **options)

    fetching = Fetching(tmp_path / "staging")
    with fleet(tmp_path / "state", Engine(fetch=fetching), token="token-of-the-tests", model="words") as there:
        for name, value in (("URL", there.url), ("MODEL", "words"), ("TOKEN", "token-of-the-tests")):
            monkeypatch.setenv(f"ROSE_{name}", value)
        hook = {"worker_process_setup_hook": define_torchvision}
        ray.init(num_cpus=4, include_dashboard=False, runtime_env=hook)
        handles = [ray.remote(Actor).remote(is_master) for is_master in (True, False)]
        actors = RayWorkerGroup(worker_handles=handles, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(Actor)))
        config = RolloutConfig(name="rose", prompt_length=4, response_length=6)
        replica = RolloutReplicaRegistry.get("rose")(0, config, HFModelConfig.__new__(HFModelConfig))
        asyncio.run(replica.init_standalone())
        assert replica.server_address == there.url.removeprefix("http://")
        manager = CheckpointEngineManager(CheckpointEngineConfig(backend="rose"), actors, [replica])
        for step in (1, 2):
            manager.update_weights(global_steps=step)
            asked = {
                "request_id": "r",
                "prompt_ids": [1, 2, 3],
                "sampling_params": {"temperature": 1.0, "logprobs": True},
            }
            made = ray.get(replica.server_handle.generate.remote(**asked, image_data=None, video_data=None))
            assert (made.token_ids, made.log_probs) == (list(range(3, 9)), [-0.5] * 6)
            assert made.extra_fields["global_steps"] == step
    assert [version for _, version, _ in fetching.fetched] == [1, 2]


def test_it_is_short():
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60
