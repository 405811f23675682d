"""Times, sizes and amounts for people. The end of a column's name gives the unit, as everywhere in a ledger."""

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

Number = int | float | Decimal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Columns that count from the Unix epoch. Others of these units are lengths.
_INSTANT = re.compile(
    r"(?:.*_)?(?:t|t0|t1|at|from|to|joined|left|began|ended|started|newest|oldest|until)_(?P<unit>[nu]s)"
)
_LENGTH = re.compile(r"(?:.*_)?(?P<unit>ns|us|bytes|mw|mj|(?:milli|micro|nano)_usd)")
_NS_PER = {"ns": 1, "us": 1000}
_SCALES = {
    "bytes": ("B", "kB", "MB", "GB", "TB", "PB"),
    "mw": ("mW", "W", "kW", "MW"),
    "mj": ("mJ", "J", "kJ", "MJ", "GJ"),
}
#: From this many nanoseconds on: the unit's nanoseconds, and its name.
_TIMES = (
    (172_800e9, 86_400e9, "d"),
    (7200e9, 3600e9, "h"),
    (120e9, 60e9, "min"),
    (0.9995e9, 1e9, "s"),
    (0.9995e6, 1e6, "ms"),
    (0.9995e3, 1e3, "µs"),
)
_DIGITS_AFTER_POINT = {"milli_usd": 3, "micro_usd": 6, "nano_usd": 9}


def cell(column: str, value: Any) -> str | None:
    """Return `value` of `column` for people: `1.24 s`, `3.1 GB`, `2026-11-22 19:30:01.123456 UTC`; None if it needs no
    unit. Lengths and sizes are rounded to three digits; times and money are exact."""
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return None
    if (unit_match := _INSTANT.fullmatch(column)) is not None:
        return _since_epoch(int(value) * _NS_PER[unit_match["unit"]], unit_match["unit"])
    if (unit_match := _LENGTH.fullmatch(column)) is None:
        return None
    unit = unit_match["unit"]
    if unit in _NS_PER:
        return length(value * _NS_PER[unit])
    if unit in _SCALES:
        return _scaled(value, _SCALES[unit])
    return f"{Decimal(str(value)).scaleb(-_DIGITS_AFTER_POINT[unit]):,f} USD"


def instant(time: datetime) -> str:
    utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M:%S.%f} UTC"


def length(ns: Number) -> str:
    for least_ns, unit_ns, unit in _TIMES:
        if abs(float(ns)) >= least_ns:
            return f"{_digits(float(ns) / unit_ns)} {unit}"
    return f"{_digits(float(ns))} ns"


def size(size_bytes: Number) -> str:
    return _scaled(size_bytes, _SCALES["bytes"])


def _scaled(value: Number, units: tuple[str, ...]) -> str:
    scaled = float(value)
    for unit in units[:-1]:
        if abs(scaled) < 999.5:
            return f"{_digits(scaled)} {unit}"
        scaled /= 1000
    return f"{_digits(scaled)} {units[-1]}"


def _digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    after_point = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(after_point, 2)}f}"


def _since_epoch(ns: int, unit: str) -> str | None:
    try:
        time = _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError:
        return None
    text = instant(time)
    return text if unit == "us" else text.replace(" UTC", f"{ns % 1000:03d} UTC")
