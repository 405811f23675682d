"""Which RL run an event of a device belongs to, where this version's events say so."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from rose.events import Event

_Event = TypeVar("_Event", bound=Event)


def labelled(event: _Event, **run_ids: str | None) -> _Event:
    """The event with these fields, such as `rl_run_id`; "" is none."""
    known = {name: value or None for name, value in run_ids.items() if name in type(event).__dataclass_fields__}
    return dataclasses.replace(event, **known) if known else event
