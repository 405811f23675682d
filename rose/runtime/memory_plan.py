"""Computes the sizes of KV pools in tokens, and what each engine takes of a GPU's memory. Imports no torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rose.config import CoservingConfig, DeviceConfig, FleetConfig, RolloutConfig
from rose.config.checks import more_ranks
from rose.runtime.models import models
from rose.runtime.models.models import kv_bytes_per_token, weights_bytes
from rose.runtime.platform import cpu
from rose.runtime.policy.kv import KvMemory, initial_budget_bytes

CORES_SERVING_TOKENS = 8192  # Pools on CPU cores, where a page is taken when first written: more than a core fills.
CORES_ROLLOUT_TOKENS = 32768
#: Allowances for the CUDA context, graphs and activations. SGLang reserves 1.5 MiB for each token of a prefill chunk.
#: A chunk has 8192 tokens in serving on a large card, and 512 in a rollout engine; the reserve is for at least 2048.
#: SGLang reserves 2 MiB for each row of a graph.
SERVING_WORKSPACE_BYTES = 6 << 30
ROLLOUT_WORKSPACE_BYTES = 4 << 30
TRAINER_BYTES_PER_WEIGHT_BYTE = 8  # float32 masters, gradients, two moments and activations for each bfloat16 weight.
TRAINER_WORKSPACE_BYTES = 2 << 30
_FRACTION_MAX = 0.98
_FRACTION_MIN = 0.05

_ASK_FREE = """
import json, sys, torch
print(json.dumps({index: torch.cuda.mem_get_info(index)[0] for index in map(int, sys.argv[1:])}))
"""
_ASK_TIMEOUT_S = 120


class DeviceMemoryError(Exception):
    """A device's memory is too small or cannot be read. The message says what to do."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    name: str
    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """The KV pools and the other memory on a fleet's devices. A device has room for one rollout model at a time."""

    config: FleetConfig
    serving_models: Mapping[str, Path]
    rollout_models: Mapping[str, Path]

    @classmethod
    def resolve(cls, config: FleetConfig, say: Callable[[str], None]) -> MemoryPlan:
        cache = config.cache.expanduser()
        names = {config.serving_on(device).model for device in config.device}
        serving = {name: models.resolve(name, cache, say) for name in names}
        folders: dict[str, Path] = {}
        for rollout in config.rollouts.values():
            folder = folders[rollout.model] = models.resolve(rollout.model, cache, say)
            if rollout.tokenizer and not models.has_tokenizer(folder):
                say(
                    f"rollout model {rollout.model!r} has no tokenizer.json in {folder}: its engines take token ids "
                    "alone, and refuse stop strings and grammars"
                )
        return cls(config=config, serving_models=serving, rollout_models=folders)

    def serving_model(self, device: DeviceConfig) -> Path:
        return self.serving_models[self.config.serving_on(device).model]

    def serving_bytes_per_token(self, device: DeviceConfig) -> int:
        return kv_bytes_per_token(self.serving_model(device), _dtype(device))

    def rollout_bytes_per_token(self, device: DeviceConfig, rollout: RolloutConfig) -> int:
        return kv_bytes_per_token(self.rollout_models[rollout.model], _dtype(device))

    def serving_tokens(self, device: DeviceConfig) -> int:
        """Return the size of the serving pool in tokens: `max_total_tokens`, if it is set. By default, it is what fits
        in `kv_bytes` on a GPU, and a constant on cores."""
        tokens = self.config.serving_on(device).max_total_tokens
        if tokens is not None:
            return tokens
        if device.gpu is None:
            return CORES_SERVING_TOKENS
        return device.kv_bytes // self.serving_bytes_per_token(device)

    def rollout_tokens(self, device: DeviceConfig, rollout: RolloutConfig) -> int:
        """Return the size of the rollout pool in tokens: `max_total_tokens`, if it is set. The default on a lent GPU is
        the largest budget of a lease; on another GPU, it is what fits in `kv_bytes`; on cores, it is a constant."""
        if rollout.max_total_tokens is not None:
            return rollout.max_total_tokens
        if device.gpu is None:
            return CORES_ROLLOUT_TOKENS
        room, token_bytes = device.kv_bytes, self.rollout_bytes_per_token(device, rollout)
        if device.pool == "serving":
            serving_token_bytes = self.serving_bytes_per_token(device)
            room = initial_budget_bytes(kv_memory(device, self.config.coserving, serving_token_bytes, token_bytes))
        return room // token_bytes

    def parts(self, device: DeviceConfig, rollout: RolloutConfig) -> list[MemoryPart]:
        lends, parts = device.pool == "serving", []
        if lends and device.serving_url is None:
            kv_bytes = self.serving_tokens(device) * self.serving_bytes_per_token(device)
            weights = weights_bytes(self.serving_model(device))
            parts.append(MemoryPart("serving", weights, kv_bytes, SERVING_WORKSPACE_BYTES))
        if not lends or self.config.coserving.enabled:
            kv_bytes = self.rollout_tokens(device, rollout) * self.rollout_bytes_per_token(device, rollout)
            weights = weights_bytes(self.rollout_models[rollout.model])
            parts.append(MemoryPart("rollout", weights, kv_bytes, ROLLOUT_WORKSPACE_BYTES))
        trainer = trainer_device(self.config)
        if trainer is not None and device.id == trainer.id:
            state_bytes = max(map(weights_bytes, self.rollout_models.values())) * TRAINER_BYTES_PER_WEIGHT_BYTE
            parts.append(MemoryPart("trainer", state_bytes, 0, TRAINER_WORKSPACE_BYTES))
        return parts

    def check(self, device: DeviceConfig, free_bytes: int) -> None:
        """Raises DeviceMemoryError if the GPU lacks room for a rollout model or for one token of a pool."""
        for table, rollout in self.config.rollouts.items():
            pools = {"serving": self.serving_tokens(device), table: self.rollout_tokens(device, rollout)}
            for role, tokens in pools.items():
                if tokens < 1 and (role == table or device.pool == "serving"):
                    raise DeviceMemoryError(
                        f"device {device.id!r}: kv_bytes {device.kv_bytes} cannot hold a {role} token: raise kv_bytes"
                    )
            if device.pool != "serving" or more_ranks(self.config.serving_on(device).extra_args) is None:
                self._check_room(device, rollout, free_bytes)

    def _check_room(self, device: DeviceConfig, rollout: RolloutConfig, free_bytes: int) -> None:
        parts = self.parts(device, rollout)
        needed = sum(part.total_bytes for part in parts)
        if needed <= free_bytes:
            return
        with_model = f" with rollout model {rollout.model!r}" if self.config.rollout_models else ""
        listed = "; ".join(
            f"{part.name}: weights {_gib(part.weights_bytes)}, KV {_gib(part.kv_bytes)}, "
            f"graphs and workspace {_gib(part.workspace_bytes)} (allowance)"
            for part in parts
        )
        raise DeviceMemoryError(
            f"device {device.id!r}: {_gib(free_bytes)} GiB are free on GPU {device.gpu}, and {_gib(needed)} GiB are "
            f"needed{with_model}. In GiB: {listed}. Lower kv_bytes ({device.kv_bytes}) or max_total_tokens, "
            "or end other programs on that GPU"
        )

    def memory_fraction(self, device: DeviceConfig, rollout: RolloutConfig, name: str, free_bytes: int) -> float:
        """Return SGLang's `--mem-fraction-static` for the engine `name`: the share of free memory for its weights and
        KV pool. The rest is for graphs and activations. Raises ValueError if the device starts no such engine."""
        for part in self.parts(device, rollout):
            if part.name == name:
                share = 1.0 - part.workspace_bytes / max(1, free_bytes)
                return math.ceil(1000 * min(_FRACTION_MAX, max(_FRACTION_MIN, share))) / 1000
            free_bytes -= part.total_bytes
        raise ValueError(f"device {device.id!r} starts no engine {name!r}")


def kv_memory(
    device: DeviceConfig, coserving: CoservingConfig, serving_token_bytes: int, rollout_token_bytes: int
) -> KvMemory:
    return KvMemory(
        device_bytes=device.kv_bytes,
        serving_bytes_per_token=serving_token_bytes,
        rollout_bytes_per_token=rollout_token_bytes,
        headroom=coserving.headroom,
        high_watermark=coserving.high_watermark,
    )


def trainer_device(config: FleetConfig) -> DeviceConfig | None:
    return next((device for device in config.device if device.pool == "rollout"), None)


def free_memory(gpus: Sequence[int]) -> dict[int, int]:
    """Return the free bytes of each GPU, measured by another process. Raises DeviceMemoryError."""
    command = [sys.executable, "-c", _ASK_FREE, *map(str, gpus)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise DeviceMemoryError(f"the free memory of GPUs {list(gpus)} could not be read within {_ASK_TIMEOUT_S} s")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceMemoryError(f"the free memory of GPUs {list(gpus)} cannot be read: {reason}")
    return {int(index): int(free) for index, free in json.loads(done.stdout.strip().splitlines()[-1]).items()}


def _dtype(device: DeviceConfig) -> str | None:
    return cpu.dtype() if device.gpu is None else None


def _gib(amount_bytes: int) -> str:
    return f"{amount_bytes / 2**30:.1f}"
