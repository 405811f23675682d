"""Events that the controller records: the turns that it sees, the beginning and end of runs, and what clients send."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rose import events
from rose.clock import utc_us
from rose.errors import UserError
from rose.ledger import rows
from rose.ledger.layout import LedgerError
from rose.runtime.scheduling.messages import REASON_LENGTH_MAX
from rose.runtime.scheduling.turns.turns import Turn, new_id

#: What a client may record of its run.
CLIENT_KINDS: dict[str, type[events.Event]] = {
    kind.kind: kind for kind in (events.Trajectory, events.Verdict, events.Step)
}


class EventRefusedError(UserError):
    """An event that a client sent is none that it may record."""


def client_event(run_id: str, given: Mapping[str, Any]) -> events.Event:
    """The event of the run that a client describes. Raises EventRefusedError, naming kind, field and value."""
    for name, value in given.items():
        length = max(len(name), len(value) if isinstance(value, str) else 0)
        if isinstance(value, (list, dict)) or length > REASON_LENGTH_MAX:
            raise EventRefusedError(
                f"field {name[:60]!r} of an event must be a number or a text of at most {REASON_LENGTH_MAX} characters"
            )
    kind = given.get("kind")
    if kind not in CLIENT_KINDS:
        raise EventRefusedError(f"kind is {kind!r}; a client records {', '.join(sorted(CLIENT_KINDS))}")
    if not isinstance(given.get("event_id"), str) or not given["event_id"]:
        raise EventRefusedError(
            f"event_id is {given.get('event_id')!r}; give each {kind} an id of its own, so that it counts once"
        )
    if given.get("run_id") not in (None, run_id):
        raise EventRefusedError(f"run_id is {given['run_id']!r}; this is run {run_id!r}")
    try:
        event = CLIENT_KINDS[kind](
            **{name: value for name, value in given.items() if name != "kind"} | {"run_id": run_id}
        )
        rows.encode(event)
    except (TypeError, ValueError, LedgerError) as error:
        raise EventRefusedError(f"{kind} {given['event_id']!r}: {error}")
    return event


def run_event(due: Mapping[str, Any], fleet_run_id: str | None) -> events.Event:
    """The event of a run that began or ended, from what `runs.state` kept of it."""
    return events.Run(
        **{name: value for name, value in due.items() if name not in ("kind", "config", "tags")},
        config_json=json.dumps(due["config"], sort_keys=True),
        tags_json=json.dumps(due["tags"], sort_keys=True),
        fleet_run_id=fleet_run_id,
    )


def turn_fields(turn: Turn, fleet_run_id: str | None) -> list[dict[str, Any]]:
    """The fields of the turn's events, one for each attempt: JSON, of which `turn_event` makes the event."""
    labels = turn.labels
    at_us, made = utc_us(), new_id()
    return [
        {
            "at_us": at_us,
            "event_id": f"{made}/{number}",
            "run_id": turn.run_id,
            "fleet_run_id": fleet_run_id,
            "trajectory_id": turn.trajectory_id,
            "group_id": labels.group_id,
            "step": labels.step,
            "turn": turn.number,
            "attempt": number,
            **attempt,
        }
        for number, attempt in enumerate(turn.attempts)
    ]


def turn_event(values: Mapping[str, Any]) -> events.Event:
    """Less what the ledger has no field for: why an attempt failed, and what a later version may have kept."""
    return events.Turn(**{name: value for name, value in values.items() if name in _TURN_FIELDS})


_TURN_FIELDS = frozenset(field.name for field in dataclasses.fields(events.Turn))
