"""Spans in which a device would have been given back to its owner, had it not been lent.

The runtime does not record them: whoever sizes the fleet states them in a CSV file with the columns device_id, from and
to (UTC, such as 2026-06-01T00:00:00Z; `to` is the first instant after the span).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from rose.pricing.money import PricingError

COLUMNS = ("device_id", "from", "to")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """[from_ns, to_ns) of a device, UTC nanoseconds."""

    device_id: str
    from_ns: int
    to_ns: int


def read(path: Path) -> tuple[Span, ...]:
    """Spans of a file, in order. Raises PricingError, naming file and line, for one that cannot be used."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file)
            if tuple(lines.fieldnames or ()) != COLUMNS:
                raise PricingError(f"{path}: line 1 must be `{','.join(COLUMNS)}`, got {lines.fieldnames}")
            return check((_span(path, lines.line_num, line) for line in lines), str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PricingError(
            f"cannot read {path}: {error}. Give a CSV file with the columns {', '.join(COLUMNS)}."
        ) from None


def check(spans: Iterable[Span], where: str) -> tuple[Span, ...]:
    """The spans in order. Raises PricingError for two of one device that overlap: that time would be charged twice."""
    ordered = tuple(sorted(spans))
    for one, other in pairwise(ordered):
        if one.device_id == other.device_id and other.from_ns < one.to_ns:
            raise PricingError(
                f"{where}: two spans of device {one.device_id!r} overlap; its time would be charged twice"
            )
    return ordered


def _span(path: Path, line: int, given: dict[str | None, str | None]) -> Span:
    values = {name: (given.get(name) or "").strip() for name in COLUMNS}
    if None in given or not all(values.values()):
        raise PricingError(f"{path}: line {line} must have a value in each of {', '.join(COLUMNS)}, and no more")
    from_ns, to_ns = (_utc_ns(path, line, name, values[name]) for name in ("from", "to"))
    if to_ns <= from_ns:
        raise PricingError(f"{path}: line {line}: to {values['to']} must be after from {values['from']}")
    return Span(values["device_id"], from_ns, to_ns)


def _utc_ns(path: Path, line: int, name: str, value: str) -> int:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise PricingError(
            f"{path}: line {line}: {name} must be a time such as 2026-06-01T00:00:00Z, got {value!r}"
        ) from None
    if at.tzinfo is None:
        raise PricingError(f"{path}: line {line}: {name} {value!r} has no time zone; write {value}Z for UTC")
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
