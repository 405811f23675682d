"""Price books as TOML text, for tests and benchmarks whose prices one can work out in the head."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

#: A table of the file, and the fields of one entry of it.
Entry = tuple[str, Mapping[str, Any]]

LENDING: Entry = (
    "lending",
    {
        "idle_anyway": True,
        "scheduler_usd_per_lease_s": 0,
        "kv_recompute_usd_per_million_tokens": 0,
        "violation_usd": 0,
    },
)
TOKENS: Entry = ("tokens", {"input_usd_per_million": 1, "output_usd_per_million": 3})


def electricity(usd_per_kwh: str, pue: str = "1") -> Entry:
    """A tariff, USD for a kWh."""
    return "electricity", {"usd_per_kwh": Decimal(usd_per_kwh), "pue": Decimal(pue)}


def device(device_class: str, usd_per_hour: str, **fields: Any) -> Entry:
    """What an hour of a device costs, USD, from 2020 on unless `fields` say otherwise."""
    plain = {"commitment": "reserved", "valid_from": date(2020, 1, 1)}
    return "device", {"class": device_class, "usd_per_hour": Decimal(usd_per_hour), **plain, **fields}


def toml(name: str, *entries: Entry) -> str:
    """Version 1 of a price book; an entry that names no source is by hand, of 2026-01-01."""
    text = _lines({"name": name, "version": "1", "currency": "USD"})
    for table, fields in entries:
        cited = {"source": "by hand", "source_date": date(2026, 1, 1)} if "source" not in fields else {}
        text += f"\n[[{table}]]\n{_lines({**fields, **cited})}"
    return text


def _lines(fields: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in fields.items())


def _value(value: str | bool | int | Decimal | date) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)
