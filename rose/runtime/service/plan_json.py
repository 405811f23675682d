"""Configurations and plans as JSON, in which they reach the processes of a fleet's parts.

Ray keeps what a part was told and gives it to each process that it starts again, whatever program is installed there by
then. A pickled object would come back as an older program made it, without the fields that are new since.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import TypeAdapter

_T = TypeVar("_T")


def dump(plan: object) -> str:
    """The text of a configuration or a plan, with the secrets that are in it."""
    return TypeAdapter(type(plan)).dump_json(plan).decode()


def load(kind: type[_T], plan: _T | str) -> _T:
    """What `dump` wrote, by this version or another: a field that it lacks has its default. A keeper of a version that
    wrote no JSON hands over the object itself. Raises ValidationError."""
    return TypeAdapter(kind).validate_json(plan) if isinstance(plan, str) else plan
