"""Price books as TOML text."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

Entry = tuple[str, Mapping[str, Any]]  #: A table of the file, and the fields of one entry.

_FREE = ("scheduler_usd_per_lease_s", "kv_recompute_usd_per_million_tokens", "violation_usd")
LENDING: Entry = ("lending", {"idle_anyway": True, **dict.fromkeys(_FREE, 0)})
TOKENS: Entry = ("tokens", {"input_usd_per_million": 1, "output_usd_per_million": 3})


def electricity(usd_per_kwh: str, pue: str = "1") -> Entry:
    return "electricity", {"usd_per_kwh": Decimal(usd_per_kwh), "pue": Decimal(pue)}


def device(device_class: str, usd_per_hour: str, **fields: Any) -> Entry:
    """Return a device price from 2020 on, unless `fields` say otherwise."""
    plain = {"commitment": "reserved", "valid_from": date(2020, 1, 1)}
    return "device", {"class": device_class, "usd_per_hour": Decimal(usd_per_hour), **plain, **fields}


def toml(name: str, *entries: Entry) -> str:
    """Return version 1 of a price book; the source of an entry is "by hand" of 2026-01-01 unless it names one."""
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
