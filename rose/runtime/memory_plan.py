"""What engines take of a device's memory: pools of tokens from `kv_bytes`, and on a GPU all of it against what is free.

Each engine of a device has a pool of its own, as large as it may ever fill; which of them may fill it is the budget's
to say. Importing this module loads no torch.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rose.config import DeviceConfig, FleetConfig
from rose.fleet_checks import more_ranks
from rose.runtime.engines import cpu
from rose.runtime.engines.models import kv_bytes_per_token, weights_bytes
from rose.runtime.policy.kv import KvMemory, initial_budget_bytes, under_pressure

#: Pools on CPU cores, where a page of a pool is taken when it is first written: more than a core fills.
CORES_SERVING_TOKENS = 8192
CORES_ROLLOUT_TOKENS = 32768
#: Beside weights and pool an engine has a CUDA context, captured graphs and the activations of its largest step. These
#: are allowances, not measurements: SGLang itself reserves 1.5 MiB for each token of a prefill chunk (8192 in serving
#: on a large card, 512 in a rollout engine, of which it counts 2048 at least), and 2 MiB for each row of a graph.
SERVING_WORKSPACE_BYTES = 6 << 30
ROLLOUT_WORKSPACE_BYTES = 4 << 30
#: The trainer has float32 masters, gradients and two moments for each bfloat16 weight, and activations: an allowance.
TRAINER_BYTES_PER_WEIGHT_BYTE = 8
TRAINER_WORKSPACE_BYTES = 2 << 30
#: No more of what is free is given to weights and pool, however much that is.
_FRACTION_MAX = 0.98
_FRACTION_MIN = 0.05

_ASK_FREE = """
import json, sys, torch
print(json.dumps({index: torch.cuda.mem_get_info(index)[0] for index in map(int, sys.argv[1:])}))
"""
_ASK_TIMEOUT_S = 120


class DeviceMemoryError(Exception):
    """The device's memory cannot hold what it should, or cannot be asked for; the message says what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPart:
    """What one process takes of a GPU, in bytes."""

    name: str
    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """The pools and parts of the devices of a fleet. `serving_model` and `rollout_model` are checkpoint folders."""

    config: FleetConfig
    serving_model: Path
    rollout_model: Path

    def serving_bytes_per_token(self, device: DeviceConfig) -> int:
        return kv_bytes_per_token(self.serving_model, _dtype(device))

    def rollout_bytes_per_token(self, device: DeviceConfig) -> int:
        return kv_bytes_per_token(self.rollout_model, _dtype(device))

    def serving_tokens(self, device: DeviceConfig) -> int:
        """The pool of the serving engine: as many tokens as `kv_bytes` holds, unless the file says how many."""
        given = self.config.serving.max_total_tokens
        if given is not None:
            return given
        if device.gpu is None:
            return CORES_SERVING_TOKENS
        return device.kv_bytes // self.serving_bytes_per_token(device)

    def rollout_tokens(self, device: DeviceConfig) -> int:
        """The pool of the rollout engine: what a lease may ever allow it, or all of a dedicated device."""
        given = self.config.rollout.max_total_tokens
        if given is not None:
            return given
        if device.gpu is None:
            return CORES_ROLLOUT_TOKENS
        room = initial_budget_bytes(self._kv(device)) if device.pool == "serving" else device.kv_bytes
        return room // self.rollout_bytes_per_token(device)

    def parts(self, device: DeviceConfig) -> list[MemoryPart]:
        """What a run will put on the device, in the order in which it starts. A serving engine of its owner's is there
        already, and not counted."""
        lends, parts = device.pool == "serving", []
        if lends and device.serving_url is None:
            parts.append(
                MemoryPart(
                    name="serving",
                    weights_bytes=weights_bytes(self.serving_model),
                    kv_bytes=self.serving_tokens(device) * self.serving_bytes_per_token(device),
                    workspace_bytes=SERVING_WORKSPACE_BYTES,
                )
            )
        if not lends or self.config.coserving.enabled:
            parts.append(
                MemoryPart(
                    name="rollout",
                    weights_bytes=weights_bytes(self.rollout_model),
                    kv_bytes=self.rollout_tokens(device) * self.rollout_bytes_per_token(device),
                    workspace_bytes=ROLLOUT_WORKSPACE_BYTES,
                )
            )
        trainer = trainer_device(self.config)
        if trainer is not None and device.id == trainer.id:
            parts.append(
                MemoryPart(
                    name="trainer",
                    weights_bytes=weights_bytes(self.rollout_model) * TRAINER_BYTES_PER_WEIGHT_BYTE,
                    kv_bytes=0,
                    workspace_bytes=TRAINER_WORKSPACE_BYTES,
                )
            )
        return parts

    def check(self, device: DeviceConfig, free_bytes: int) -> None:
        """Raises DeviceMemoryError if the GPU has no room for the device's parts, or `kv_bytes` none for a token.

        A serving engine of several ranks is not summed up: its parts are on several GPUs.
        """
        if device.gpu is None:
            return
        self._check_pools(device)
        if device.pool == "serving" and more_ranks(self.config.serving.extra_args) is not None:
            return
        parts = self.parts(device)
        needed = sum(part.total_bytes for part in parts)
        if needed <= free_bytes:
            return
        listed = "; ".join(
            f"{part.name}: weights {_gib(part.weights_bytes)}, KV {_gib(part.kv_bytes)}, "
            f"graphs and workspace {_gib(part.workspace_bytes)} (allowance)"
            for part in parts
        )
        raise DeviceMemoryError(
            f"device {device.id!r}: {_gib(free_bytes)} GiB are free on GPU {device.gpu}, and {_gib(needed)} GiB are "
            f"needed, in GiB: {listed}. Lower kv_bytes ({device.kv_bytes}), of which the pools are made, "
            f"{self._given_pools()}or end what else is on that GPU"
        )

    def unreachable_budget(self, device: DeviceConfig) -> str | None:
        """Why the KV budget of a lent device can never bind, where the file gives pools that are too small for that."""
        serving, rollout = self.config.serving.max_total_tokens, self.config.rollout.max_total_tokens
        lent = device.pool == "serving" and device.serving_url is None and self.config.coserving.enabled
        if not lent or (serving is None and rollout is None):
            return None
        full = self._kv(device, self.serving_tokens(device), self.rollout_tokens(device))
        if under_pressure(full):
            return None
        return (
            f"device {device.id!r}: {self._given_pools(', ')}the pools hold {_gib(full.serving_bytes)} and "
            f"{_gib(full.rollout_bytes)} GiB, so that {_gib(device.kv_bytes)} GiB of kv_bytes never run short and the "
            "headroom is never used: leave max_total_tokens out, or lower kv_bytes"
        )

    def memory_fraction(self, device: DeviceConfig, name: str, free_bytes: int) -> float:
        """`--mem-fraction-static` of an engine on a GPU, of which `free_bytes` are free before the run starts anything.

        SGLang keeps 1 - fraction of what is free when an engine starts for graphs and activations. It sizes the pool by
        the rest, whatever another engine will want, but never above `--max-total-tokens`. So the fraction is that which
        leaves the allowance, and the pool is as large as was planned.
        """
        for part in self.parts(device):
            if part.name == name:
                share = 1.0 - part.workspace_bytes / max(1, free_bytes)
                return math.ceil(1000 * min(_FRACTION_MAX, max(_FRACTION_MIN, share))) / 1000
            free_bytes -= part.total_bytes
        raise ValueError(f"device {device.id!r} starts no engine {name!r}")

    def _check_pools(self, device: DeviceConfig) -> None:
        for role, tokens in (("serving", self.serving_tokens(device)), ("rollout", self.rollout_tokens(device))):
            if tokens < 1 and (role == "rollout" or device.pool == "serving"):
                raise DeviceMemoryError(
                    f"device {device.id!r}: kv_bytes {device.kv_bytes} hold no token of the {role} model: raise it"
                )

    def _given_pools(self, end: str = ", ") -> str:
        """The pools that the file gives, as text."""
        given = [
            f"{section}.max_total_tokens ({tokens})"
            for section, tokens in (
                ("serving", self.config.serving.max_total_tokens),
                ("rollout", self.config.rollout.max_total_tokens),
            )
            if tokens is not None
        ]
        return " and ".join(given) + end if given else ""

    def _kv(self, device: DeviceConfig, serving_tokens: int = 0, rollout_tokens: int = 0) -> KvMemory:
        return KvMemory(
            device_bytes=device.kv_bytes,
            serving_bytes_per_token=self.serving_bytes_per_token(device),
            rollout_bytes_per_token=self.rollout_bytes_per_token(device),
            headroom=self.config.coserving.headroom,
            high_watermark=self.config.coserving.high_watermark,
            serving_tokens=serving_tokens,
            rollout_tokens=rollout_tokens,
        )


def trainer_device(config: FleetConfig) -> DeviceConfig | None:
    """The device on which the trainer runs and to which its time is charged: the first dedicated one. One of several
    hosts may have none."""
    return next((device for device in config.device if device.pool == "rollout"), None)


def free_memory(gpus: Sequence[int]) -> dict[int, int]:
    """Free bytes of GPUs, by CUDA index. Raises DeviceMemoryError.

    Asked in a process of its own: the context that asking makes would stay on the GPU as long as this one lives.
    """
    command = [sys.executable, "-c", _ASK_FREE, *map(str, gpus)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise DeviceMemoryError(f"GPUs {list(gpus)} did not say within {_ASK_TIMEOUT_S} s how much memory is free")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceMemoryError(f"GPUs {list(gpus)} cannot be asked how much memory is free: {reason}")
    return {int(index): int(free) for index, free in json.loads(done.stdout.strip().splitlines()[-1]).items()}


def _dtype(device: DeviceConfig) -> str | None:
    """What engines of the device compute in; None: what the checkpoint is in."""
    return cpu.dtype() if device.gpu is None else None


def _gib(amount_bytes: int) -> str:
    return f"{amount_bytes / 2**30:.1f}"
