"""Formats values for a terminal, a spreadsheet or JSON. Text in events is not trusted."""

import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from rose.terminal import Escapes

_ESCAPES = Escapes(lambda char: json.dumps(char)[1:-1], kept="\n")
#: What a spreadsheet takes for a formula, also behind blanks and as a character of full width; polars reads it too.
FORMULA = re.compile(r"^(?:[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])")

_NUMBERS = (int, float, Decimal, date, time, timedelta)
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


def json_text(value: Any) -> tuple[str, int]:
    """Return `value` as JSON, and how many NaN and infinite numbers became null."""
    plain, count = _finite(value)
    text = json.dumps(plain, default=cell_text, indent=2, ensure_ascii=False, allow_nan=False)
    return text.translate(_ESCAPES), count


def csv_cells(row: Iterable[Any]) -> list[str]:
    """Return the cells of a CSV line. An apostrophe goes before text that looks like a formula."""
    texts = [(cell_text(cell), isinstance(cell, _NUMBERS)) for cell in row]
    return [f"'{text}" if not is_number and FORMULA.match(text) else text for text, is_number in texts]


def cell_text(cell: Any) -> str:
    """Return a value as text. Times are ISO 8601, and UTC unless they have a zone."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return cell.isoformat(timespec="microseconds") + ("Z" if cell.tzinfo is None else "")
    return cell.isoformat() if isinstance(cell, date) else str(cell)


def _finite(value: Any) -> tuple[Any, int]:
    if isinstance(value, float):
        return (value, 0) if math.isfinite(value) else (None, 1)
    if isinstance(value, dict):
        done = {key: _finite(item) for key, item in value.items()}
        texts = {key if isinstance(key, str) else cell_text(key): item for key, (item, _) in done.items()}
        return texts, sum(count for _, count in done.values())
    if isinstance(value, list | tuple):
        items = [_finite(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    return value, 0


def readable(column: str, value: Any) -> str | None:
    """Return `value` with the unit of `column`, such as `1.24 s`, or None if it needs no unit."""
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
