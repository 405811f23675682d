"""The fleet that is measured: two hosts in two zones, a core on each that serves and is lent, and one for rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.plan import HostName
from benchmarks.faults.setting import Engines
from rose.config import FleetConfig, TrainingConfig

NAME = "fleet"
HOSTS: tuple[HostName, ...] = ("one", "other")
ADDRESSES: dict[HostName, str] = {"one": "10.77.0.1", "other": "10.77.0.2"}
DEVICES: dict[str, HostName] = {"serving-one": "one", "serving-other": "other", "rollout-one": "one"}
#: Between the zones of the hosts.
ROUTE = "inter-zone"
TOKEN = "a-token-of-the-benchmark"
RAY_ADDRESS = f"{ADDRESSES['one']}:6379"
URL = f"http://{ADDRESSES['one']}:30100"
#: On each host. Models of the stand-ins are its own; real ones lie in the user's cache, which hosts can read.
FILE, LEDGER, MODEL = "/srv/fleet.json", "/srv/ledger", "/srv/model"
SERVING_URL = "http://127.0.0.1:30000"
PRICE_BOOK = "example"
_KV_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Team:
    """A team with an RL run, and where its trainer is. `device` is the one that the trainer is charged for."""

    name: str
    host: HostName
    device: str | None = None

    @property
    def checkpoint(self) -> str:
        """On its host."""
        return f"/srv/checkpoint-{self.name}"


#: The second one's trainer is killed and resumed.
TEAMS = (Team("research", "one", "rollout-one"), Team("agents", "other"))
KILLED = TEAMS[1]


def config(engines: Engines) -> FleetConfig:
    """The fleet file. Two host processes of this machine share its second core: nothing is measured but accounts."""
    real = engines == "sglang"
    serving_url = {} if real else {"serving_url": SERVING_URL}
    own: dict[str, dict[str, Any]] = {
        "serving-one": {"pool": "serving", "cores": [0], **serving_url},
        "serving-other": {"pool": "serving", "cores": [1], **serving_url},
        "rollout-one": {"pool": "rollout", "cores": [1]},
    }
    shared = {"device_class": "cpu-core", "kv_bytes": _KV_BYTES}
    return FleetConfig.model_validate(
        {
            "name": NAME,
            "ledger": LEDGER,
            "state": "/srv/state",
            "cache": str(Path("~/.cache/rose").expanduser() if real else "/srv/cache"),
            "price_book": PRICE_BOOK,
            "tags": {"team": "platform", "serving_team": "chat"},
            "host": [{"name": name, "address": ADDRESSES[name], "zone": f"zone-{name}"} for name in HOSTS],
            "device": [{"id": name, "host": host, **own[name], **shared} for name, host in DEVICES.items()],
            "serving": {"ttft_budget_ms": 2000, "tpot_budget_ms": 400} | ({} if real else {"model": MODEL}),
            "rollout": {} if real else {"model": MODEL},
            "coserving": {"holdout_share": 0},
            "traffic": {"trace": "bursty"} if real else {},
            "task": {"workers": 1} | ({} if real else {"size": 3, "turns_max": 4}),
            "training": training(engines),
            "gateway": {"host": "0.0.0.0", "port": 30100, "token": TOKEN},
        }
    )


def training(engines: Engines) -> dict[str, Any]:
    """Steps of a few seconds."""
    groups, size = (4, 8) if engines == "sglang" else (2, 4)
    return TrainingConfig(minibatches=1, groups_per_step=groups, group_size=size).model_dump()
