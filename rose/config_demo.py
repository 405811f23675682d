"""The fleet of `rose demo`: two cores of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rose.config import ConfigError, FleetConfig, validated

#: KV memory of the demo's serving device: small enough that a burst of serving reaches its headroom.
_KV_BYTES = 64 << 20


def demo(
    cores: Sequence[int],
    *,
    ledger: Path,
    trace: str | None = None,
    requests_per_s_max: float | None = None,
    prompt_tokens_max: int | None = None,
    output_tokens_max: int | None = None,
    steps: int | None = None,
) -> FleetConfig:
    """The built-in one-machine fleet: a serving device on the first core, a dedicated rollout device on the second.

    None keeps a field's default. Raises ConfigError if there are fewer than two cores, or a value cannot be used.
    """
    if len(cores) < 2:
        raise ConfigError(f"the demo needs two CPU cores and this process has {len(cores)}; `rose up -c` takes others")
    traffic = {
        "trace": trace or "bursty",
        "requests_per_s_max": requests_per_s_max,
        "prompt_tokens_max": prompt_tokens_max,
        "output_tokens_max": output_tokens_max,
    }
    device = {"device_class": "cpu-core", "kv_bytes": _KV_BYTES}
    return validated(
        {
            "name": "demo",
            "tags": {"team": "research", "serving_team": "chat"},
            "price_book": "example",
            "ledger": ledger,
            "state": ledger / "logs",
            "device": [
                {"id": "serving-0", "pool": "serving", "cores": [cores[0]], **device},
                {"id": "rollout-0", "pool": "rollout", "cores": [cores[1]], **device},
            ],
            # What this model promises on one core: about three times what it takes when alone.
            "serving": {"ttft_budget_ms": 2000, "tpot_budget_ms": 400},
            # Too short to tell what lending costs serving: it takes eight windows without leases at the least.
            "coserving": {"holdout_share": 0},
            "traffic": {name: value for name, value in traffic.items() if value is not None},
            "training": {"staleness_max": 2} | ({} if steps is None else {"steps": steps}),
        },
        "of the demo",
    )
