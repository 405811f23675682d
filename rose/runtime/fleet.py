"""Plans the engines on each device of a fleet: their ports, cores, folders and arguments."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from rose.clock import Anchor
from rose.config import DeviceConfig, FleetConfig, RolloutConfig
from rose.events import Run
from rose.runtime.agent.agent import AgentSpec, budgets
from rose.runtime.coserving.kv.activation import LEASED_ARGUMENTS
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines.door import Door, addresses
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineSpec
from rose.runtime.host_plan import HostPlan
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.models import models
from rose.runtime.platform import gpu
from rose.runtime.platform.gpu import mps
from rose.runtime.traffic.trace import fit, open_trace

BACKGROUND_NICE = 10


def writer_name(host: str, writer: str) -> str:
    return f"{host}.{writer}" if host else writer


def host_cores(devices: Iterable[DeviceConfig]) -> set[int]:
    """Return this process's cores that no serving device has. If there are none, return all its cores."""
    available = os.sched_getaffinity(0)
    serving = {core for device in devices if device.pool == "serving" for core in device.cores}
    return (available - serving) or available


def recorded_config(config: FleetConfig) -> str:
    document = config.model_dump(mode="json", exclude={"gateway": {"token"}})
    if config.price_book is not None and config.price_book.endswith(".toml"):
        with suppress(OSError):
            document["price_book_sha256"] = hashlib.sha256(Path(config.price_book).read_bytes()).hexdigest()
    return json.dumps(document)


def fleet_event(config: FleetConfig, action: Literal["started", "ended"], reason: str | None = None) -> Run:
    host = {"cores": psutil.cpu_count(), "memory_bytes": psutil.virtual_memory().total, "platform": os.uname().machine}
    trace = open_trace(config.traffic) if action == "started" else None
    fitted = None if trace is None else fit(trace, config.traffic)
    return Run(
        action=action,
        reason=reason,
        name=config.name,
        config_json=recorded_config(config),
        host_json=json.dumps(host),
        tags_json=json.dumps(config.tags),
        trace=None if fitted is None else fitted.trace.name,
        trace_keep_share=None if fitted is None else fitted.keep_share,
        trace_length_scale=None if fitted is None else fitted.length_scale,
        trace_output_length_scale=None if fitted is None else fitted.output_length_scale,
        trace_time_scale=None if fitted is None else fitted.time_scale,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    host: HostPlan
    memory: MemoryPlan
    anchor: Anchor = field(default_factory=Anchor.take)
    door: Door | None = None  # The door of rollout engines on another host; None: loopback.
    fork_server: Path | None = None
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    orphan_s: float | None = None  # Seconds that rollout engines live without an agent; None: they end with it.

    @property
    def config(self) -> FleetConfig:
        return self.memory.config

    def page(self, device: DeviceConfig) -> Path:
        return self.host.memory / device.id / "page"

    def agent_spec(self, device: DeviceConfig) -> AgentSpec:
        config, promised = self.config, self.config.serving_on(device)
        lends = device.pool == "serving"
        rolls_out = config.coserving.enabled or not lends
        engines = [self._rollout(device, rollout) for rollout in config.rollouts.values() if rolls_out]
        return AgentSpec(
            device=device,
            coserving=config.coserving,
            budgets=budgets(promised),
            max_prompt_tokens=promised.max_prompt_tokens,
            run_id=self.host.run_id,
            anchor=self.anchor,
            page=self.page(device),
            staging=self._staging(device),
            rollout=engines[0] if engines else None,
            other_models={other.model_name: other for other in engines[1:]},
            serving_model=promised.model,
            serving_kv_bytes_per_token=self.memory.serving_bytes_per_token(device),
            gateway_url=self.host.controller_url,
            agent_token=self.host.agent_token,
            host=self.host.host,
        )

    def _staging(self, device: DeviceConfig) -> Path:
        return self.host.memory / device.id / "staging"

    def _host_cores(self) -> list[int]:
        return sorted(host_cores(self.config.device))

    def serving(self, device: DeviceConfig) -> EngineSpec:
        """Return how to start a serving engine. It starts without a page, and is attached to its page later."""
        config = self.config.serving_on(device)
        memory = self._memory_arguments(device, self.config.rollout, "serving")
        number = [other.id for other in self.config.device if other.pool == "serving"].index(device.id)
        return EngineSpec(
            engine_id=f"{device.id}-serving",
            model=str(self.memory.serving_model(device)),
            model_name=config.model,
            port=free_port() if config.port is None else config.port + number,
            any_port=config.port is None,
            max_total_tokens=self.memory.serving_tokens(device),
            plugin=PluginSettings("serving", None),
            log=self.host.logs / f"{device.id}-serving.log",
            gpu=device.gpu,
            cores=device.cores,
            host_cores=self._host_cores() if device.gpu is None else (),
            fork_server=self.fork_server if device.gpu is None else None,  # It has SGLang loaded for cores.
            # Each answer then tells how much of its prompt was in the prefix cache, from which lending may evict.
            extra_args=["--enable-cache-report", *memory, *config.extra_args],
        )

    def _rollout(self, device: DeviceConfig, config: RolloutConfig) -> EngineSpec:
        gated = device.pool == "serving"
        host_cores = self._host_cores() if gated and device.gpu is None else ()
        lent_gpu = gated and device.gpu is not None
        leased = lent_gpu and self.config.coserving.activation == "leased"
        return EngineSpec(
            engine_id=f"{device.id}-rollout",
            model=str(self.memory.rollout_models[config.model]),
            model_name=config.model,
            door=self.door,
            # Each model has its own: that of an ended engine stays taken a while.
            port=free_port(*addresses(self.door)),
            any_port=True,
            max_total_tokens=self.memory.rollout_tokens(device, config),
            capacity=config.max_concurrent,
            kv_bytes_per_token=self.memory.rollout_bytes_per_token(device, config),
            plugin=PluginSettings(
                "rollout", self.page(device), self._staging(device), gated=gated, host_cores=tuple(host_cores)
            ),
            log=self.host.logs / f"{device.id}-rollout.log",
            gpu=device.gpu,
            cores=device.cores,
            host_cores=host_cores,
            start_cores=self._host_cores() if device.gpu is None else (),
            idle_class=device.gpu is None,
            fork_server=self.fork_server if device.gpu is None else None,  # It has SGLang loaded for cores.
            nice=BACKGROUND_NICE,
            orphan_s=self.orphan_s,
            token_ids_only=not (config.tokenizer and models.has_tokenizer(self.memory.rollout_models[config.model])),
            environment=mps.client_environment(self.config.coserving.compute_share) if lent_gpu else {},
            extra_args=[
                f"--chunked-prefill-size={config.prefill_chunk_tokens}",
                f"--max-running-requests={config.max_concurrent}",
                *(() if device.gpu is None else gpu.GATED_ARGUMENTS if gated else gpu.DEDICATED_ARGUMENTS),
                *(LEASED_ARGUMENTS if leased else ()),
                *self._memory_arguments(device, config, "rollout"),
                *config.extra_args,
            ],
        )

    def _memory_arguments(self, device: DeviceConfig, rollout: RolloutConfig, name: str) -> list[str]:
        if (free_bytes := self.free_bytes.get(device.id)) is None:
            return []
        return [f"--mem-fraction-static={self.memory.memory_fraction(device, rollout, name, free_bytes)}"]
