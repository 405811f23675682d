"""Events as rows: each field is checked where it enters, since a wrong one found later would spoil a whole segment."""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rose.events import COMMON_COLUMNS, KINDS, Event, all_columns, columns
from rose.ledger.layout import LedgerError

_ARROW: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "VARCHAR": pa.string(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}
_INT64_MAX = 2**63 - 1

#: (seq, kind, the values of `_fields(kind)` in order).
Row = tuple[int, str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    sql_type: str
    optional: bool
    #: The values a Literal field may take.
    allowed: tuple[str, ...]


@functools.cache
def schema() -> pa.Schema:
    """Every column of the ledger with its Arrow type."""
    return pa.schema([(name, _ARROW[sql_type]) for name, sql_type in all_columns().items()])


def encode(event: Event) -> tuple[Any, ...]:
    """The values of an event's own fields, checked.

    Raises LedgerError naming the kind, the field and the value if a value does not fit its column.
    """
    fields, values_of = _fields(event.kind)
    return tuple(
        [
            value if value is None and field.optional else _check(event.kind, field, value)
            for field, value in zip(fields, values_of(event), strict=True)
        ]
    )


def table(writer: str, run_id: str, provenance: str, rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table of the common columns and those kind columns that occur in `rows`, in order of `rows`."""
    count = len(rows)
    occurring = {kind for _, kind, _ in rows}
    names = {*COMMON_COLUMNS}.union(*(columns(kind) for kind in occurring))
    data: dict[str, list[Any]] = {name: [None] * count for name in all_columns() if name in names}
    data["writer"] = [writer] * count
    data["seq"] = [seq for seq, _, _ in rows]
    data["run_id"] = [run_id] * count
    data["provenance"] = [provenance] * count
    data["kind"] = [kind for _, kind, _ in rows]
    for kind in occurring:
        targets = [data[field.name] for field in _fields(kind)[0]]
        for position, (_, row_kind, values) in enumerate(rows):
            if row_kind == kind:
                for target, value in zip(targets, values, strict=True):
                    target[position] = value
    arrays = {name: pa.array(values, type=schema().field(name).type) for name, values in data.items()}
    return pa.table(arrays)


@functools.cache
def _fields(kind: str) -> tuple[tuple[_Field, ...], Callable[[Event], tuple[Any, ...]]]:
    if kind not in KINDS:
        raise LedgerError(f"{kind!r} is not a kind of event; the kinds are {', '.join(KINDS)}")
    hints = typing.get_type_hints(KINDS[kind])
    common = ("at_us", "event_id", "device_id", "engine_id", "lease_id", "trajectory_id", "policy_version")
    fields = tuple(_field(name, hints[name]) for name in (*common, *columns(kind)))
    return fields, operator.attrgetter(*(field.name for field in fields))


def _field(name: str, hint: Any) -> _Field:
    allowed = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    return _Field(name, all_columns()[name], type(None) in typing.get_args(hint), allowed)


def _check(kind: str, field: _Field, value: Any) -> Any:
    """`value` as its column stores it; NumPy scalars become Python's."""
    match field.sql_type:
        case "VARCHAR":
            if isinstance(value, str) and (not field.allowed or value in field.allowed) and _is_utf8(value):
                return value
            wanted = f"one of {', '.join(field.allowed)}" if field.allowed else "text"
        case "BIGINT":
            if hasattr(value, "__index__") and -_INT64_MAX <= (number := operator.index(value)) <= _INT64_MAX:
                return number
            wanted = "an integer that fits 64 bits"
        case "DOUBLE":
            if hasattr(value, "__float__"):
                return float(value)
            wanted = "a number"
        case _:
            if value is True or value is False or isinstance(value, np.bool_):
                return bool(value)
            wanted = "true or false"
    raise LedgerError(f"event {kind!r}: {field.name} must be {wanted}, got {value!r}")


def _is_utf8(text: str) -> bool:
    """False for a lone surrogate, which no file can hold."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False
