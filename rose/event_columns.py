"""The columns that events have in the ledger: each field of each kind, and its SQL type."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Literal

from rose.events import KINDS

#: Columns of every event, in order, with the SQL type of each. The ledger fills the first five.
COMMON_COLUMNS: dict[str, str] = {
    "writer": "VARCHAR",
    "seq": "BIGINT",
    "event_id": "VARCHAR",
    "run_id": "VARCHAR",
    "provenance": "VARCHAR",
    "at_us": "BIGINT",
    "kind": "VARCHAR",
    "device_id": "VARCHAR",
    "engine_id": "VARCHAR",
    "lease_id": "VARCHAR",
    "trajectory_id": "VARCHAR",
    "policy_version": "BIGINT",
}

_SQL_TYPES: dict[type, str] = {int: "BIGINT", str: "VARCHAR", float: "DOUBLE", bool: "BOOLEAN"}


@functools.cache
def columns(kind: str) -> dict[str, str]:
    """The fields of a kind beyond the common columns, with the SQL type of each, in order.

    Raises KeyError for a kind that is not in KINDS.
    """
    cls = KINDS[kind]
    hints = typing.get_type_hints(cls)
    return {f.name: _sql_type(hints[f.name]) for f in dataclasses.fields(cls) if f.name not in COMMON_COLUMNS}


def _sql_type(hint: object) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        hint = type(typing.get_args(hint)[0])
    assert isinstance(hint, type)
    return _SQL_TYPES[hint]


@functools.cache
def all_columns() -> dict[str, str]:
    """Every column of the ledger: the common ones, then those of each kind. A name has one type in all kinds."""
    merged = dict(COMMON_COLUMNS)
    for kind in KINDS:
        for name, sql_type in columns(kind).items():
            if merged.setdefault(name, sql_type) != sql_type:
                raise TypeError(f"column {name!r} is {merged[name]} in one kind of event and {sql_type} in {kind!r}")
    return merged
