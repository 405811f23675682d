"""Turns events into rows, and checks each field first, because a wrong field would spoil a whole segment."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rose.event_columns import Field, all_columns, columns, fields
from rose.event_fields import Range, Rule
from rose.events import KINDS, Event
from rose.ledger.files.layout import LedgerError

_ARROW = {"BIGINT": pa.int64(), "VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}

Row = tuple[str, tuple[Any, ...]]  # An event: its kind and the values of `fields_of(kind)` in order.


@functools.cache
def schema() -> pa.Schema:
    return pa.schema([(name, _ARROW[sql_type]) for name, sql_type in all_columns().items()])


def fields_of(kind: str) -> tuple[Field, ...]:
    if kind not in KINDS:
        raise LedgerError(f"{kind!r} is not a kind of event; the kinds are {', '.join(KINDS)}")
    return fields(kind)


def encode(event: Event) -> tuple[Any, ...]:
    """Return the checked values of an event's fields. Raises LedgerError, which names the field and value."""
    try:
        quick = _quick(event.kind)
    except AttributeError:
        raise LedgerError(f"{event!r} is not an event; record one of the classes in rose.events") from None
    values = quick(event)
    if values is not None:
        return values
    fields = fields_of(event.kind)
    values = tuple(
        value if (value := getattr(event, field.name)) is None and field.optional else _check(event.kind, field, value)
        for field in fields
    )
    named = {field.name: value for field, value in zip(fields, values, strict=True)}
    for rule in KINDS[event.kind].rules:
        if not _holds(rule)(named):
            raise _refusal(event.kind, rule.field, rule.wanted, named[rule.field])
    return values


def _refusal(kind: str, field: str, wanted: str, value: Any) -> LedgerError:
    return LedgerError(f"event {kind!r}: {field} must be {wanted}, got {value!r}")


@functools.cache
def _holds(rule: Rule) -> Callable[[dict[str, Any]], Any]:
    code = compile(rule.holds, "rule", "eval")
    return lambda named: eval(code, {}, named)  # noqa: S307 - of our own rules alone


def table(writer: str, first_seq: int, run_id: str, provenance: str, batch: Sequence[Row]) -> pa.Table:
    """Return a writer's events as a table. Their seqs begin at `first_seq`. An event without a run gets `run_id`. An
    event of another run gets `run_id` as its fleet run, unless it names a fleet run."""
    rows_by_kind: dict[str, list[tuple[Any, ...]]] = {}
    seqs_by_kind: dict[str, list[int]] = {}
    for seq, (kind, values) in enumerate(batch, start=first_seq):
        rows_by_kind.setdefault(kind, []).append(values)
        seqs_by_kind.setdefault(kind, []).append(seq)
    parts: list[pa.Table] = []
    for kind, rows in rows_by_kind.items():
        arrays: dict[str, Any] = {"seq": pa.array(seqs_by_kind[kind], pa.int64())}
        for field, column in zip(fields_of(kind), zip(*rows, strict=True), strict=True):
            array = pa.array(column, _ARROW[field.sql_type])
            if array.null_count < len(array):
                arrays[field.name] = array
        constants = {"kind": kind, "provenance": provenance} | ({} if "run_id" in arrays else {"run_id": run_id})
        arrays |= {name: pa.repeat(pa.scalar(value), len(rows)) for name, value in constants.items()}
        if arrays["run_id"].null_count:
            arrays["run_id"] = arrays["run_id"].fill_null(run_id)
        if "fleet_run_id" in columns(kind) and (of_others := pc.not_equal(arrays["run_id"], run_id)).true_count:
            named = arrays.get("fleet_run_id", pa.nulls(len(rows), pa.string()))
            arrays["fleet_run_id"] = pc.coalesce(named, pc.if_else(of_others, run_id, None))
        parts.append(pa.table(arrays))
    whole = parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default").sort_by("seq")
    whole = whole.append_column("writer", pa.repeat(pa.scalar(writer), whole.num_rows))
    present = set(whole.column_names)
    return whole.select([name for name in schema().names if name in present])


@functools.cache
def _quick(kind: str) -> Callable[[Event], tuple[Any, ...] | None]:
    """Return a fast, generated function. It takes an event and returns its values, or None if a value may be wrong."""
    fields = fields_of(kind)
    literals = {f"allowed_{field.name}": frozenset(field.allowed) for field in fields if field.allowed}
    names = ", ".join(field.name for field in fields)
    lines = [
        "def quick(event):",
        *(f"    {field.name} = event.{field.name}" for field in fields),
        f"    if {' and '.join([*map(_surely, fields), *(rule.holds for rule in KINDS[kind].rules)])}:",
        f"        return ({names},)",
        "    return None",
    ]
    scope: dict[str, Any] = {**literals, "INFINITY": math.inf}
    exec("\n".join(lines), scope)  # noqa: S102 - of our own field names alone
    made: Callable[[Event], tuple[Any, ...] | None] = scope["quick"]
    return made


def _surely(field: Field) -> str:
    name = field.name
    match field.sql_type:
        case "BIGINT":
            assert field.range is not None
            fits = f"type({name}) is int and {_within(field.range, name)}"
        case "VARCHAR":
            known = f"{name} in allowed_{name}" if field.allowed else f"{name}.isascii()"
            fits = f"type({name}) is str and {known}" + (f" and {name}" if field.filled else "")
        case "DOUBLE":
            # No infinity, and no NaN, for which every comparison is false.
            fits = f"type({name}) is float and "
            fits += f"-INFINITY < {name} < INFINITY" if field.range is None else _within(field.range, name)
        case _:
            fits = f"type({name}) is bool"
    return f"({name} is None or {fits})" if field.optional else f"({fits})"


def _within(limits: Range, name: str) -> str:
    return f"{limits.least} <= {name} <= {limits.most}"


def _check(kind: str, field: Field, value: Any) -> Any:
    truth = isinstance(value, bool | np.bool_)
    with suppress(TypeError, ValueError, OverflowError):
        match field.sql_type:
            case "VARCHAR":
                known = isinstance(value, str) and (value in field.allowed or not field.allowed)
                if known and (value or not field.filled):
                    value.encode()  # Half of a surrogate pair cannot be stored.
                    return value
            case "BIGINT":
                assert field.range is not None
                if not truth and field.range.least <= (number := operator.index(value)) <= field.range.most:
                    return number
            case "DOUBLE":
                least, most = (field.range.least, field.range.most) if field.range else (-math.inf, math.inf)
                real = float(value) if not truth and hasattr(value, "__float__") else math.nan
                if math.isfinite(real) and least <= real <= most:
                    return real
            case _:
                if truth:
                    return bool(value)
    raise _refusal(kind, field.name, field.wanted, value)
