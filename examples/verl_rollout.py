"""verl on a fleet: rollouts run on the fleet's engines, and the trainer publishes each step's weights there.

Install ROSE in verl's environment and put this folder on PYTHONPATH. Run a trainer of separate rollouts: set ROSE_URL,
ROSE_MODEL (the fleet's), ROSE_TOKEN and VERL_USE_EXTERNAL_MODULES=verl_rollout, and in its configuration rollout.name
and rollout.checkpoint_engine.backend to `rose`.
"""

import asyncio
import os

import ray
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from rose import client

RolloutReplicaRegistry.register("rose", lambda: Replica)


class Server:  # The actor that has the run. To verl it is a worker with nothing to do: engines fetch their weights.
    update_weights = execute_checkpoint_engine = lambda self, *_, **__: None

    def __init__(self, prompt_length, response_length):
        self.lengths, about = (prompt_length, response_length), {"token": os.environ.get("ROSE_TOKEN"), "name": "verl"}
        self.run = client.open_run(os.environ["ROSE_URL"], model=os.environ["ROSE_MODEL"], staleness_max=0, **about)

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        wanted = {name: value for name, value in sampling_params.items() if name != "logprobs"}
        wanted.setdefault("max_new_tokens", min(self.lengths[1], sum(self.lengths) - len(prompt_ids)))
        made = await self.run.turn(list(prompt_ids), wanted, trajectory_id=request_id)
        more = {"log_probs": made.logprobs, "extra_fields": {"global_steps": max(made.versions, default=None)}}
        return TokenOutput(token_ids=made.output_ids, stop_reason="completed", **more)

    async def publish(self, tensors, version):
        await asyncio.to_thread(self.run.publish, tensors, version)


class Replica(RolloutReplica):
    async def launch_servers(self):
        actor = ray.remote(Server).options(name="rose", get_if_exists=True, max_concurrency=self.max_concurrency)
        self._server_handle = actor.remote(self.config.prompt_length, self.config.response_length)
        self._server_address, self.workers = os.environ["ROSE_URL"].partition("//")[2], [self._server_handle]

    init_standalone = launch_servers


@CheckpointEngineRegistry.register("rose")
class Publisher(CheckpointEngine):
    prepare = init_process_group = finalize = receive_weights = lambda self, *_, **__: None
    build_topology = classmethod(lambda cls, actors, rollouts, metadata: ({}, {}))

    def __init__(self, is_master=False, **_):
        self.is_master = is_master

    async def send_weights(self, weights, global_steps=None):
        """All ranks gather each tensor, and the first publishes them. The step is their version."""
        parts = ensure_async_iterator(weights)
        tensors = {name: part.detach().bfloat16().cpu() async for name, part in parts if self.is_master}
        await ray.get_actor("rose").publish.remote(tensors, global_steps) if self.is_master else None
