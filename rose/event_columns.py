"""The columns of the ledger, which are the fields of all kinds of events."""

import dataclasses
import functools
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rose.event_fields import NOT_EMPTY, Range
from rose.events import KINDS

_INTEGERS = ("seq", "at_us", "policy_version")
COMMON_COLUMNS = {  # The columns of every event, with SQL types; the ledger fills in the first five.
    name: "BIGINT" if name in _INTEGERS else "VARCHAR"
    for name in (
        *("writer", "seq", "event_id", "run_id", "provenance", "at_us", "kind"),
        *("device_id", "engine_id", "lease_id", "trajectory_id", "policy_version"),
    )
}

_SQL_TYPES: dict[type, str] = {int: "BIGINT", str: "VARCHAR", float: "DOUBLE", bool: "BOOLEAN"}


@functools.cache
def columns(kind: str) -> dict[str, str]:
    """Return the SQL types of a kind's own fields by name, without the common columns. Raises KeyError."""
    return {field.name: field.sql_type for field in fields(kind) if field.name not in COMMON_COLUMNS}


@functools.cache
def all_columns() -> dict[str, str]:
    """Return the common columns, then the columns of each kind. A name has one type in all kinds."""
    return COMMON_COLUMNS | {name: sql_type for kind in KINDS for name, sql_type in columns(kind).items()}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    sql_type: str
    optional: bool
    allowed: tuple[str, ...]
    range: Range | None = None
    filled: bool = False

    @property
    def wanted(self) -> str:
        if self.sql_type == "VARCHAR":
            named = f"one of {', '.join(self.allowed)}" if self.allowed else "text"
            return f"{named} that is not empty" if self.filled else named
        if self.range is not None:
            return str(self.range)
        return {"DOUBLE": "a finite number", "BOOLEAN": "true or false"}[self.sql_type]


@functools.cache
def fields(kind: str) -> tuple[Field, ...]:
    cls = KINDS[kind]
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [field.name for field in dataclasses.fields(cls)]
    return tuple(_field(name, hints[name], needed=name in cls.needs) for name in names)


def _field(name: str, hint: Any, *, needed: bool) -> Field:
    optional = type(None) in typing.get_args(hint)
    if optional:
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
    marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    plain = typing.get_args(hint)[0] if marks else hint
    allowed = typing.get_args(plain) if typing.get_origin(plain) is Literal else ()
    limits = next((mark for mark in marks if isinstance(mark, Range)), None)
    sql_type = _SQL_TYPES[type(allowed[0]) if allowed else plain]
    return Field(name, sql_type, optional and not needed, allowed, limits, NOT_EMPTY in marks)
