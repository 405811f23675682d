"""Events as rows: each field is checked where it enters, since a wrong one found later would spoil a whole segment."""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rose.events import KINDS, Event, all_columns, columns
from rose.ledger.layout import LedgerError

_ARROW: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "VARCHAR": pa.string(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}
_INT64_MAX = 2**63 - 1
#: The common fields that an event brings along; the ledger adds writer, seq, run_id, provenance and kind.
_OWN_COMMON = ("at_us", "event_id", "device_id", "engine_id", "lease_id", "trajectory_id", "policy_version")

#: An event: its kind and the values of `fields_of(kind)` in order.
Row = tuple[str, tuple[Any, ...]]
Getter = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a kind of event, and what it may hold."""

    name: str
    sql_type: str
    optional: bool
    #: The values a Literal field may take.
    allowed: tuple[str, ...]


@functools.cache
def schema() -> pa.Schema:
    """Every column of the ledger with its Arrow type."""
    return pa.schema([(name, _ARROW[sql_type]) for name, sql_type in all_columns().items()])


@functools.cache
def fields_of(kind: str) -> tuple[Field, ...]:
    """The fields of a kind: the common ones that an event brings along, then its own. Raises LedgerError."""
    if kind not in KINDS:
        raise LedgerError(f"{kind!r} is not a kind of event; the kinds are {', '.join(KINDS)}")
    hints = typing.get_type_hints(KINDS[kind])
    return tuple(_field(name, hints[name]) for name in (*_OWN_COMMON, *columns(kind)))


def encode(event: Event) -> tuple[Any, ...]:
    """The values of an event's own fields, checked.

    Raises LedgerError naming the kind, the field and the value if a value does not fit its column.
    """
    encoder = _encoder(event.kind)
    values: tuple[Any, ...] = encoder.values_of(event)
    shape = encoder.shapes.get(types := tuple(map(type, values)))
    if shape is not None and shape.holds(values):
        return values
    checked = tuple(
        value if value is None and each.optional else _check(event.kind, each, value)
        for each, value in zip(encoder.fields, values, strict=True)
    )
    if tuple(map(type, checked)) == types:
        encoder.shapes[types] = _Shape.of(encoder.fields, values)
    return checked


def table(writer: str, first_seq: int, run_id: str, provenance: str, batch: Sequence[Row | pa.Table]) -> pa.Table:
    """Events, and tables of events as `rose.ledger.batch.checked` returns them, in the order of `batch`.

    A column without a value is left out, but for those that every event has.
    """
    rows_of: dict[str, list[tuple[Any, ...]]] = {}
    seqs_of: dict[str, list[int]] = {}
    parts: list[pa.Table] = []
    seq = first_seq
    for item in batch:
        if isinstance(item, tuple):
            kind, values = item
            rows_of.setdefault(kind, []).append(values)
            seqs_of.setdefault(kind, []).append(seq)
            seq += 1
        else:
            seqs = np.arange(seq, seq + item.num_rows)
            parts.append(item.append_column("seq", pa.array(seqs)))
            seq += item.num_rows
    for kind, rows in rows_of.items():
        arrays: dict[str, Any] = {"seq": pa.array(seqs_of[kind], pa.int64())}
        for each, column in zip(fields_of(kind), zip(*rows, strict=True), strict=True):
            array = pa.array(column, _ARROW[each.sql_type])
            if array.null_count < len(array):
                arrays[each.name] = array
        constants = {"kind": kind, "run_id": run_id, "provenance": provenance}
        arrays |= {name: pa.repeat(pa.scalar(value), len(rows)) for name, value in constants.items()}
        parts.append(pa.table(arrays))
    whole = parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default")
    if rows_of and len(parts) > 1:
        whole = whole.sort_by("seq")
    whole = whole.append_column("writer", pa.repeat(pa.scalar(writer), whole.num_rows))
    present = set(whole.column_names)
    return whole.select([name for name in schema().names if name in present])


@dataclass(frozen=True, slots=True)
class _Shape:
    """Values of known Python types: what is left to check of them, without a loop over fields."""

    integers: Getter
    texts: Getter
    literals: tuple[tuple[int, frozenset[str | None]], ...]

    @classmethod
    def of(cls, fields: Sequence[Field], values: Sequence[Any]) -> _Shape:
        by_type: dict[type, list[int]] = {int: [], str: []}
        for index, value in enumerate(values):
            by_type.setdefault(type(value), []).append(index)
        literals = tuple((index, frozenset({*each.allowed, None})) for index, each in enumerate(fields) if each.allowed)
        return cls(_getter(by_type[int]), _getter(by_type[str]), literals)

    def holds(self, values: tuple[Any, ...]) -> bool:
        """Whether the values surely fit; if not, they are looked at one by one."""
        for index, allowed in self.literals:
            if values[index] not in allowed:
                return False
        integers = self.integers(values)
        fit = min(integers) >= -_INT64_MAX and max(integers) <= _INT64_MAX
        return fit and "".join(self.texts(values)).isascii()


@dataclass(slots=True)
class _Encoder:
    fields: tuple[Field, ...]
    values_of: Callable[[Event], tuple[Any, ...]]
    #: By the types of the values; a handful for each kind.
    shapes: dict[tuple[type, ...], _Shape] = field(default_factory=dict)


@functools.cache
def _encoder(kind: str) -> _Encoder:
    fields = fields_of(kind)
    return _Encoder(fields, operator.attrgetter(*(each.name for each in fields)))


def _getter(indexes: list[int]) -> Getter:
    """Picks the values at `indexes`; always a tuple."""
    if len(indexes) > 1:
        return operator.itemgetter(*indexes)
    return operator.itemgetter(slice(indexes[0], indexes[0] + 1) if indexes else slice(0, 0))


def _field(name: str, hint: Any) -> Field:
    allowed = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    return Field(name, all_columns()[name], type(None) in typing.get_args(hint), allowed)


def _check(kind: str, each: Field, value: Any) -> Any:
    """`value` as its column stores it; NumPy scalars become Python's."""
    match each.sql_type:
        case "VARCHAR":
            if isinstance(value, str) and (not each.allowed or value in each.allowed) and _is_utf8(value):
                return value
            wanted = f"one of {', '.join(each.allowed)}" if each.allowed else "text"
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
    raise LedgerError(f"event {kind!r}: {each.name} must be {wanted}, got {value!r}")


def _is_utf8(text: str) -> bool:
    """False for a lone surrogate, which no file can hold."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False
