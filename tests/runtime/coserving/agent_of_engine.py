"""The agent of a dedicated device around an engine that a test made: a real one, whose threads are not started."""

from __future__ import annotations

from rose import config
from rose.clock import Anchor
from rose.runtime.coserving.agent.agent import AgentSpec, DeviceAgent
from rose.runtime.coserving.weights.sync import straight
from rose.runtime.policy.slack import Budgets


def spec_of(engine_spec, page, staging, *, gateway_url="http://127.0.0.1:1", **coserving):
    """The spec of a dedicated device with this engine."""
    return AgentSpec(
        device=config.DeviceConfig(id="d0", pool="rollout", device_class="cpu-core", cores=[0], kv_bytes=1 << 20),
        coserving=config.CoservingConfig(**coserving),
        budgets=Budgets(1, 1),
        max_prompt_tokens=1,
        run_id="run",
        anchor=Anchor(0),
        page=page,
        staging=staging,
        rollout=engine_spec,
        rollout_capacity=4,
        rollout_kv_bytes_per_token=1,
        serving_engine_id=None,
        serving_model="none",
        serving_kv_bytes_per_token=1,
        gateway_url=gateway_url,
        agent_token="agent-token-of-tests",
    )


def agent_of(engine, folder, record, *, via=straight, **options):
    """`engine` is as `HandMadeEngine`."""
    return DeviceAgent(spec_of(engine.spec, folder / "agent-page", engine.staging, **options), record, via=via)
