from dataclasses import replace

from rose import config
from rose.clock import Anchor
from rose.runtime.agent.agent import AgentSpec, DeviceAgent
from rose.runtime.policy.slack import Budgets

SECOND = 1_000_000_000


def straight(target):
    return target


def agent_spec(folder, gateway_url, rollout, *, pool="serving", kv_bytes=1 << 20, run_id="run", **coserving):
    usual = {"lease_ttl_s": 1.5, "heartbeat_s": 0.2, "drift_audit_s": 0, "holdout_share": 0, "meter_s": 0}
    return AgentSpec(
        device=config.DeviceConfig(id="d0", pool=pool, device_class="cpu-core", cores=[0], kv_bytes=kv_bytes),
        coserving=config.CoservingConfig(**{**usual, **coserving}),
        budgets=Budgets(SECOND, SECOND),
        max_prompt_tokens=10,
        run_id=run_id,
        anchor=Anchor.take(),
        page=folder / "page",
        staging=folder / "staging",
        rollout=rollout,
        serving_model="m",
        serving_kv_bytes_per_token=4,
        gateway_url=gateway_url,
    )


def with_other(spec, name, **changes):
    engine = replace(spec.rollout, model_name=name, capacity=7, kv_bytes_per_token=4, **changes)
    return replace(spec, other_models={name: engine})


def agent_of(engine, folder, record, *, via=straight, gateway_url="http://127.0.0.1:1", **coserving):
    spec = agent_spec(folder, gateway_url, engine.spec, pool="rollout", **coserving)
    own = {"page": folder / "agent-page", "staging": engine.staging, "agent_token": "agent-token-of-tests"}
    return DeviceAgent(replace(spec, **own), record, via=via)
