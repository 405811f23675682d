"""How values leave for a terminal, a spreadsheet or a JSON parser. Events hold text that anybody may have written."""

import json
import math
import re
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from rose.terminal import Escapes

_ESCAPES = Escapes(lambda char: json.dumps(char)[1:-1], kept="\n")
#: What a spreadsheet takes for a formula, also behind blanks and as a character of full width; polars reads it too.
FORMULA = re.compile(r"^(?:[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])")

_NUMBERS = (int, float, Decimal, date, time, timedelta)


def json_text(value: Any) -> tuple[str, int]:
    """Return `value` as JSON, and how many NaN and infinities in it became null."""
    plain, count = _finite(value)
    text = json.dumps(plain, default=cell_text, indent=2, ensure_ascii=False, allow_nan=False)
    return text.translate(_ESCAPES), count


def csv_cells(row: Iterable[Any]) -> list[str]:
    """Return a CSV line's cells, an apostrophe before text that a spreadsheet would take for a formula."""
    texts = [(cell_text(cell), isinstance(cell, _NUMBERS)) for cell in row]
    return [f"'{text}" if not is_number and FORMULA.match(text) else text for text, is_number in texts]


def cell_text(cell: Any) -> str:
    """Return one value as text; a time is ISO 8601, UTC unless it has a zone, and None is empty."""
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
