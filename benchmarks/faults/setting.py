"""The fleet of the fault suites: two hosts in two zones, each with a core that serves and is lent."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.faults.plan import HostName
from rose.config import FleetConfig

Engines = Literal["sglang", "stand-in"]
ENGINE_KINDS: tuple[Engines, ...] = ("sglang", "stand-in")

NAME = "faults"
HOSTS: tuple[HostName, HostName] = ("one", "other")
#: The network numbers hosts in the order of their addition.
ADDRESSES: dict[HostName, str] = {"one": "10.77.0.1", "other": "10.77.0.2"}
RAY_PORT, GATEWAY_PORT = 6379, 30100
RAY_ADDRESS, URL = f"{ADDRESSES['one']}:{RAY_PORT}", f"http://{ADDRESSES['one']}:{GATEWAY_PORT}"
DEVICES: dict[HostName, str] = {"one": "serving-one", "other": "serving-other"}
ENGINES: dict[HostName, str] = {host: f"{device}-rollout" for host, device in DEVICES.items()}
TRAINER_DEVICE = "rollout-one"  #: The first host also has a device only for rollouts, with a trainer on it.
HOST_OF: dict[str, HostName] = {**{device: host for host, device in DEVICES.items()}, TRAINER_DEVICE: "one"}
DISK = "/srv/small"  #: The first host's file system for ledger and state, small enough to fill.
LEDGER = f"{DISK}/ledger"
#: Paths on each host. Hosts read real models from the user's cache.
FILE, MODEL, SERVING_URL = "/srv/fleet.json", "/srv/model", "http://127.0.0.1:30000"
ROUTE, PRICE_BOOK = "inter-zone", "example"  #: Between the zones of the hosts.
TOKEN = "a-token-of-the-trials"
SERVING: dict[str, Any] = {"ttft_budget_ms": 2000, "tpot_budget_ms": 400}  #: The demo's latency budgets.
_KV_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Team:
    """A team with an RL run, the host of its trainer, and the device that the trainer is charged for."""

    name: str
    host: HostName
    device: str | None = None


#: The first team trains while parts are struck; in the suite of two runs the second team's trainer is killed.
TEAMS = (Team("research", "one", TRAINER_DEVICE), Team("agents", "other"))
KILLED = TEAMS[1]


@dataclass(frozen=True, slots=True)
class Setting:
    engines: Engines = "sglang"

    @property
    def made(self) -> bool:
        return self.engines == "stand-in"

    def config(self) -> FleetConfig:
        """Return the fleet file. The second host's serving shares its core with the device only for rollouts."""
        cores = sorted(os.sched_getaffinity(0))
        model = {"model": MODEL} if self.made else {}
        url = {"serving_url": SERVING_URL} if self.made else {}
        shared = {"device_class": "cpu-core", "kv_bytes": _KV_BYTES}
        lent = [
            {"id": DEVICES[host], "host": host, "pool": "serving", "cores": [core], **shared, **url}
            for host, core in zip(HOSTS, cores, strict=False)
        ]
        alone = {"id": TRAINER_DEVICE, "host": "one", "pool": "rollout", "cores": [cores[1]], **shared}
        groups = {"groups_per_step": 8 if self.made else 4, "group_size": 8}  # Steps of a few seconds.
        return FleetConfig.model_validate(
            {
                "name": NAME,
                "ledger": LEDGER,
                "state": f"{DISK}/state",
                "cache": Path("~/.cache/rose").expanduser(),
                "price_book": PRICE_BOOK,
                "tags": {"team": "platform", "serving_team": "chat"},
                "host": [{"name": name, "address": ADDRESSES[name], "zone": f"zone-{name}"} for name in HOSTS],
                "device": [*lent, alone],
                "serving": SERVING | model,
                "rollout": model,
                "coserving": {"holdout_share": 0},
                "traffic": {"trace": "none"},
                "task": {"size": 3, "turns_max": 4} if self.made else {},
                "training": {"staleness_max": 2, "minibatches": 1, **groups},
                "gateway": {"host": "0.0.0.0", "port": GATEWAY_PORT, "token": TOKEN},
            }
        )


def make_model(folder: Path) -> None:
    from rose.runtime.models.policy_model import Policy, PolicyShape

    shape = PolicyShape(
        hidden_size=32,
        intermediate_size=64,
        head_dim=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    folder.mkdir(parents=True)
    Policy(shape, seed=0).save(folder)
