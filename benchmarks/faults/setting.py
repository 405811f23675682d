"""The fleet that is struck: two hosts, with a core on each that serves and is lent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.faults.plan import HostName
from rose.config import FleetConfig

Engines = Literal["sglang", "stand-in"]

NAME = "faults"
HOSTS: tuple[HostName, HostName] = ("one", "other")
#: The device of each host, and its lent engine.
DEVICES: dict[HostName, str] = {"one": "serving-one", "other": "serving-other"}
ENGINES: dict[HostName, str] = {host: f"{device}-rollout" for host, device in DEVICES.items()}
#: The first host has one for rollouts alone as well, which a fleet wants, with the trainer on it.
TRAINER_DEVICE = "rollout-one"
#: The file system that the first host's ledger and state are on.
DISK = "/srv/small"
#: On each host. Models of stand-ins are its own; real ones lie in the user's cache, which hosts can read.
FILE, MODEL, SERVING_URL = "/srv/fleet.json", "/srv/model", "http://127.0.0.1:30000"
GATEWAY_PORT = 30100
TOKEN = "a-token-of-the-trials"
#: What the model promises on a core of its own, as in the demo.
_TTFT_MS, _TPOT_MS = 2000, 400
_KV_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """What engines there are, and how many times the demo's latency budgets serving has."""

    engines: Engines = "sglang"
    patience: float = 1.0

    @property
    def made(self) -> bool:
        """Whether engines are stand-ins, which start in no time, serve nobody and are never late."""
        return self.engines == "stand-in"

    @property
    def serving(self) -> dict[str, Any]:
        """Serving's part of the fleet file."""
        return {"ttft_budget_ms": _TTFT_MS * self.patience, "tpot_budget_ms": _TPOT_MS * self.patience}

    def config(self, addresses: Mapping[HostName, str]) -> FleetConfig:
        """The fleet file. Two hosts of this machine share its second core, so what is for rollouts alone is drained."""
        cores = sorted(os.sched_getaffinity(0))
        model = {"model": MODEL} if self.made else {}
        url = {"serving_url": SERVING_URL} if self.made else {}
        shared = {"device_class": "cpu-core", "kv_bytes": _KV_BYTES}
        lent = [
            {"id": DEVICES[host], "host": host, "pool": "serving", "cores": [core], **shared, **url}
            for host, core in zip(HOSTS, cores, strict=False)
        ]
        alone = {"id": TRAINER_DEVICE, "host": "one", "pool": "rollout", "cores": [cores[1]], **shared}
        return FleetConfig.model_validate(
            {
                "name": NAME,
                "ledger": f"{DISK}/ledger",
                "state": f"{DISK}/state",
                "cache": Path("~/.cache/rose").expanduser(),
                "tags": {"team": "research", "serving_team": "chat"},
                "host": [{"name": name, "address": addresses[name]} for name in HOSTS],
                "device": [*lent, alone],
                "serving": self.serving | model,
                "rollout": model,
                "coserving": {"holdout_share": 0},
                "traffic": {"trace": "none"},
                "task": {"workers": 1, "size": 3, "turns_max": 4} if self.made else {},
                "training": {"staleness_max": 2}
                | ({"minibatches": 1, "groups_per_step": 8, "group_size": 8} if self.made else {}),
                "gateway": {"host": "0.0.0.0", "port": GATEWAY_PORT, "token": TOKEN},
            }
        )


def make_models(config: FleetConfig) -> None:
    """Make the fleet's models in the cache of the user who starts it: the hosts can read that, and not write to it."""
    from rose.runtime.engines import models

    for name in (config.serving.model, config.rollout.model):
        models.resolve(name, config.cache, lambda text: print(text, file=sys.stderr))


def make_model(folder: Path) -> None:
    """The least policy that a trainer takes: stand-ins compute nothing with it."""
    from rose.runtime.training.policy_model import Policy, PolicyShape

    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 32}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    folder.mkdir(parents=True)
    Policy(PolicyShape(**sizes, **layers), seed=0).save(folder)
