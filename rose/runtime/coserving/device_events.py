"""What the ledger is told of a device and the engines on it, beside leases and syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rose.events import Device, Engine, Record
from rose.runtime.engines.sglang import EngineProcess

if TYPE_CHECKING:
    from rose.runtime.coserving.agent import AgentSpec


def record_device(record: Record, spec: AgentSpec, action: Literal["joined", "left"], at_ns: int) -> None:
    """The device joined or left the fleet at `at_ns`, monotonic."""
    device = spec.device
    record(
        Device(
            device_id=device.id,
            action=action,
            t_ns=spec.anchor.utc_ns(at_ns),
            pool=device.pool,
            device_class=device.device_class,
            memory_bytes=device.kv_bytes,
        )
    )


def record_engine(
    record: Record,
    spec: AgentSpec,
    role: Literal["serving", "rollout"],
    engine: EngineProcess,
    action: Literal["started", "stopped", "died"],
    *,
    duration_ns: int | None = None,
    reason: str | None = None,
) -> None:
    """A change in the life of one of the device's engines."""
    each = spec.serving_kv_bytes_per_token if role == "serving" else spec.rollout_kv_bytes_per_token
    record(
        Engine(
            device_id=spec.device.id,
            engine_id=engine.spec.engine_id,
            action=action,
            role=role,
            model=engine.spec.model_name,
            pid=engine.pid,
            kv_bytes=engine.spec.max_total_tokens * each,
            duration_ns=duration_ns,
            # What stands in for remapping device memory and for stream priorities; see docs/coserving.md.
            memory_mechanism="budget",
            compute_mechanism="layer-yield" if engine.spec.plugin.gated else "exclusive",
            reason=reason,
        )
    )
