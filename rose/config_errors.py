"""What is wrong in a file of settings, in words: of a fleet, of alerts, of who may log in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rose.errors import did_you_mean

#: Ends of the names of fields that may have been given a secret.
_SECRET = (".token", ".url", "_env")
#: Of a URL.
_PASSWORD = re.compile(r"//[^/]*@")


def explain(error: ValidationError, file: type[BaseModel]) -> str:
    """One line for each wrong field of a file of this shape: its path, what is wrong, and the value that was given if
    it cannot be a secret."""
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "(the file)"
        if item["type"] == "extra_forbidden":
            # Its value may be a token under a misspelt name.
            *place, name = item["loc"]
            lines.append(f"  {where}: no such field{did_you_mean(str(name), _fields_at(place, file))}")
            continue
        hidden = isinstance(item["input"], dict | list) or where.endswith(_SECRET)
        given = "" if hidden else f" (got {_PASSWORD.sub('//...@', repr(item['input']))})"
        lines.append(f"  {where}: {item['msg'].removeprefix('Value error, ')}{given}")
    return "\n".join(lines)


def _fields_at(place: Iterable[int | str], file: type[BaseModel]) -> set[str]:
    """The fields of the table at a place in a file of this shape."""
    tables = [file]
    for name in place:
        # Others are numbers, names of tables, and the kind of a table where a list has several.
        if field := next((known[str(name)] for known in map(_fields, tables) if name in known), None):
            tables = _tables(field.annotation) or tables
        else:
            tables = [table for table in tables if _is_of_kind(table, name)] or tables
    return {name for table in tables for name in _fields(table)}


def _fields(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """By their names in the file."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def _tables(annotation: object) -> list[type[BaseModel]]:
    """The tables that a field of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for part in get_args(annotation) for table in _tables(part)]


def _is_of_kind(table: type[BaseModel], kind: object) -> bool:
    return any(kind in get_args(field.annotation) for field in table.model_fields.values())
