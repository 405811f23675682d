"""Builds the example fleet file of `rose config` from the configuration's fields."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from pydantic.fields import FieldInfo

from rose.config import ConfigError, DeviceConfig, FleetConfig, HostConfig, Section, validated

_EXAMPLE_HEAD = """\
# A fleet for `rose up -c fleet.toml`. Every field has its default here; a field after `#` is unset. Check a file with
# `rose doctor -c fleet.toml`.
"""

_EXAMPLE_DEVICES = """
# One table for each device. This device lends GPU 0's idle time ...
[[device]]
{serving}
# ... and this device is dedicated to rollouts and training. Without a GPU, give `cores` instead of `gpu`.
[[device]]
{rollout}"""


def example() -> str:
    serving = {"id": "serving-0", "pool": "serving", "device_class": "h100-sxm", "gpu": 0, "kv_bytes": 20 << 30}
    rollout = {"id": "rollout-0", "pool": "rollout", "device_class": "h100-sxm", "gpu": 1, "kv_bytes": 40 << 30}
    tables: list[str] = []
    scalars: list[str] = []
    for name, field in FleetConfig.model_fields.items():
        section = field.annotation
        if name in ("device", "hosts"):
            continue
        if isinstance(section, type) and issubclass(section, Section):
            tables.append(f"\n# {field.description}\n[{name}]\n{_fields(section, {})}")
        else:
            # An empty table would refuse added `[NAME.KEY]` tables.
            scalars.append(_field(name, field, None if field.default == {} else field.default))
    serving_table, rollout_table = _fields(DeviceConfig, serving), _fields(DeviceConfig, rollout, explained=False)
    devices = _EXAMPLE_DEVICES.format(serving=serving_table, rollout=rollout_table)
    return _EXAMPLE_HEAD + "\n" + "".join(scalars) + _hosts() + devices + "".join(tables)


def _hosts() -> str:
    description = textwrap.wrap(f"hosts: {FleetConfig.model_fields['hosts'].description}", 116)
    table = _fields(HostConfig, {"name": "rack-1", "address": "10.0.0.1"}).splitlines()
    lines = [line if line.startswith("#") else f"# {line}" for line in (*description, "[[host]]", *table)]
    return "\n" + "".join(f"{line}\n" for line in lines)


def _fields(section: type[Section], values: dict[str, object], *, explained: bool = True) -> str:
    fields = section.model_fields
    values = {name: field.get_default() for name, field in fields.items()} | values
    return "".join(_field(name, field, values[name], explained=explained) for name, field in fields.items())


def _field(name: str, field: FieldInfo, value: object, *, explained: bool = True) -> str:
    comment = "".join(f"# {line}\n" for line in textwrap.wrap(field.description or "", 116)) if explained else ""
    if value is None:
        return f"{comment}# {name} =\n"
    return f"{comment}{name} = {json.dumps(value, default=str)}\n"


_KV_BYTES = 64 << 20  # A burst of serving reaches its headroom.


def demo(cores: Sequence[int], ledger: Path, trace: str | None = None, steps: int | None = None) -> FleetConfig:
    """Return the demo's fleet: one core for serving, one for rollouts. Raises ConfigError without two cores."""
    if len(cores) < 2:
        raise ConfigError(f"the demo needs two CPU cores and this process has {len(cores)}: use `rose up -c`")
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
            # About three times the model's latency on one core.
            "serving": {"ttft_budget_ms": 2000, "tpot_budget_ms": 400},
            "coserving": {"holdout_share": 0},  # The demo is too short for a comparison.
            "traffic": {"trace": trace or "bursty"},
            "training": {"staleness_max": 2} | ({} if steps is None else {"steps": steps}),
        },
        "of the demo",
    )
