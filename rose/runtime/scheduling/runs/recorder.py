"""Records turns, runs, and the events of clients. A client's call returns once the ledger has the client's events."""

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from rose import events
from rose.clock import monotonic_ns, utc_us
from rose.events import Event, Record
from rose.ledger.files import rows
from rose.ledger.files.layout import LedgerError
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling.messages import REASON_LENGTH_MAX
from rose.runtime.scheduling.refusals import RefusedError, RequestError
from rose.runtime.scheduling.runs import answers
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.runs.state import FILE, GONE_S, State, StateError
from rose.runtime.scheduling.turns.turns import Turn, new_id

CLIENT_KINDS = {kind.kind: kind for kind in (events.Trajectory, events.Verdict, events.Step)}


def client_event(run_id: str, fields: Mapping[str, Any]) -> events.Event:
    for name, value in fields.items():
        length = max(len(name), len(value) if isinstance(value, str) else 0)
        if isinstance(value, (list, dict)) or length > REASON_LENGTH_MAX:
            form = f"a number or a text of at most {REASON_LENGTH_MAX} characters"
            raise RequestError(f"field {name[:60]!r} of an event must be {form}")
    if (kind := fields.get("kind")) not in CLIENT_KINDS:
        raise RequestError(f"kind is {kind!r}; a client records {', '.join(sorted(CLIENT_KINDS))}")
    if not isinstance(fields.get("event_id"), str) or not fields["event_id"]:
        raise RequestError(f"event_id is {fields.get('event_id')!r}; give each {kind} a unique id")
    if fields.get("run_id") not in (None, run_id):
        raise RequestError(f"run_id is {fields['run_id']!r}; these events go to run {run_id!r}")
    try:
        values = {name: value for name, value in fields.items() if name != "kind"}
        event = CLIENT_KINDS[kind](**values | {"run_id": run_id})
        rows.encode(event)
    except (TypeError, ValueError, LedgerError) as error:
        raise RequestError(f"{kind} {fields['event_id']!r}: {error}")
    return event


def run_event(due: Mapping[str, Any]) -> events.Event:
    return events.Run(
        **{name: value for name, value in due.items() if name not in ("kind", "config", "tags")},
        config_json=json.dumps(due["config"], sort_keys=True),
        tags_json=json.dumps(due["tags"], sort_keys=True),
    )


def turn_events(turn: Turn, fleet_run_id: str | None) -> list[events.Turn]:
    labels, turn_id = turn.request.labels, new_id()
    common: dict[str, Any] = {
        "at_us": utc_us(),
        "run_id": turn.run_id,
        "fleet_run_id": fleet_run_id,
        "trajectory_id": turn.trajectory_id,
        "group_id": labels.group_id,
        "step": labels.step,
        "turn": turn.number,
    }
    attempts = [{name: value for name, value in attempt.items() if name != "error"} for attempt in turn.attempts]
    return [
        events.Turn(**common, **attempt, attempt=number, event_id=f"{turn_id}/{number}")
        for number, attempt in enumerate(attempts)
    ]


class Recorder:
    """Records events in a running event loop. If `writer` is None, nothing is recorded."""

    def __init__(self, writer: LedgerWriter | None, state: State, fleet_run_id: str | None) -> None:
        self._writer, self._state = writer, state
        self.fleet_run_id = fleet_run_id
        self._refused: str | None = None
        self._state_failure: str | None = None
        self._recording: asyncio.Task[None] | None = None
        self._again = False
        self._turns: deque[events.Turn] = deque()

    @property
    def failure(self) -> str | None:
        return (None if self._writer is None else self._writer.failure) or self._refused or self._state_failure

    async def close(self) -> None:
        self.record_turns()
        if self._recording is not None:
            done, _ = await asyncio.wait({self._recording}, timeout=1.0)
            if not done:
                self._recording.cancel()

    def catch_up(self, stored: Iterable[bytes]) -> None:
        for text in stored:
            for event in msgspec.json.decode(text, type=list[events.Turn]):
                self.note(event)
        self.record_due()

    def turn_ended(self, attempts: Iterable[events.Turn]) -> None:
        self._turns += attempts

    def record_turns(self) -> None:
        while self._turns:
            self.note(self._turns.popleft())

    def note(self, event: Event) -> None:
        if self._writer is None:
            return
        try:
            self._writer.record(event)
            self._refused = None
        except LedgerError as error:
            # The writer reports its disk's failure itself, and keeps the event.
            self._refused = None if self._writer.failure is not None else str(error)

    async def record(self, run_id: str, fields: Sequence[Mapping[str, Any]]) -> int | None:
        """Record events durably. Return the highest step of the step events. Raises RefusedError."""
        batch = [client_event(run_id, values) for values in fields]
        if self._writer is not None:
            await self._durable(self._writer, batch)
        return max((event.step for event in batch if event.kind == "step"), default=None)  # type: ignore[attr-defined]

    def record_due(self) -> None:
        """Start to record unrecorded starts and ends of runs in the background. Failed attempts are repeated."""
        self._again = True
        if self._writer is not None and (self._recording is None or self._recording.done()):
            self._recording = asyncio.create_task(self._record_due(self._writer))

    async def _record_due(self, writer: LedgerWriter) -> None:
        while self._again:
            self._again = False
            try:
                for number, values in self._state.due():
                    await self._durable(writer, [run_event(values)])
                    self._state.recorded(number)
                self._state_failure = None
            except (RefusedError, StateError) as error:
                # The writer reports its disk's failure itself.
                self._state_failure = None if writer.failure is not None else str(error)
                self._again = True
                await asyncio.sleep(5.0)

    async def _durable(self, writer: LedgerWriter, batch: Sequence[Event]) -> None:
        self.record_turns()
        try:
            await asyncio.to_thread(writer.record_all, batch)
        except LedgerError as error:
            raise RefusedError(503, f"the ledger refuses events: {error}; send these events again") from None


FLEET_ENDED = "the fleet was ended"


def close_runs(folder: Path, fleet_run_id: str) -> list[str]:
    """Close and forget all runs. Return the ids of runs that were open. Call `record_due` next. Raises StateError."""
    if not (folder / FILE).exists():
        return []
    with closing(State(folder, GONE_S)) as state:
        runs = Runs(state, monotonic_ns(), fleet_run_id=fleet_run_id)
        open_runs = [run for run in runs if run.is_open]
        for run in open_runs:
            runs.close(run.run_id, run.facts.fence, "ended", FLEET_ENDED)
        # Runs have tokens of weight stores, and no client can repeat a turn.
        state.forget([run.run_id for run in runs])
    answers.forget(folder)
    return [run.run_id for run in open_runs]


def record_due(folder: Path, record: Record) -> None:
    """Record those events of runs that are not in the ledger yet. Raises StateError or LedgerError."""
    if (folder / FILE).exists():
        with closing(State(folder, GONE_S)) as state:
            for number, values in state.due():
                record(run_event(values), durable=True)
                state.recorded(number)
