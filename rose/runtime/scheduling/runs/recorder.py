"""Puts events into the ledger for the controller, which never waits for it but where a client asked for that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rose.clock import monotonic_ns
from rose.errors import UserError
from rose.events import Event, Record
from rose.ledger.layout import LedgerError
from rose.runtime.scheduling.runs.recording import client_event, run_event, turn_event
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.runs.state import FILE, GONE_S, State, StateError

#: How long after the ledger refused the event of a run it is tried again.
_RETRY_S = 5.0


class LedgerAwayError(UserError):
    """The ledger refuses events now; the same ones may be sent again."""

    exit_code = 1


class EventWriter(Protocol):
    """Where events go: a `LedgerWriter`."""

    @property
    def failure(self) -> str | None: ...

    def record(self, event: Event, *, durable: bool | None = None) -> object: ...

    def record_all(self, events: Sequence[Event]) -> None: ...


class Recorder:
    """`writer` None: nothing is recorded. Make it, and close it, inside a running loop."""

    def __init__(self, writer: EventWriter | None, state: State, fleet_run_id: str | None) -> None:
        self._writer, self._state = writer, state
        self.fleet_run_id = fleet_run_id
        #: Why the last event was refused, and why the state does not know what is on disk.
        self._refused: str | None = None
        self._state_failure: str | None = None
        self._recording: asyncio.Task[None] | None = None
        self._again = False
        self._turns: deque[Mapping[str, Any]] = deque()

    @property
    def failure(self) -> str | None:
        """Why events are not on disk, or that they are is not in the state; None while all is well."""
        return (None if self._writer is None else self._writer.failure) or self._refused or self._state_failure

    async def close(self) -> None:
        """What is not in the ledger by now is left to the next process of this state."""
        self.record_turns()
        if self._recording is not None:
            done, _ = await asyncio.wait({self._recording}, timeout=1.0)
            if not done:
                self._recording.cancel()

    def catch_up(self, kept: Iterable[bytes]) -> None:
        """Record what the process before may not have: events of runs, and of the turns that are kept."""
        for text in kept:
            for values in msgspec.json.decode(text):
                self.note(turn_event(values))
        self.record_due()

    def turn_ended(self, attempts: Iterable[Mapping[str, Any]]) -> None:
        """Its events, which are recorded with those of others: at the next `record_turns`, or before anything that
        somebody waits for."""
        self._turns += attempts

    def record_turns(self) -> None:
        """Events of the turns that ended since the last time; they are on disk within the flush interval then."""
        while self._turns:
            self.note(turn_event(self._turns.popleft()))

    def note(self, event: Event) -> None:
        """An event that nobody waits for; it is on disk within the flush interval."""
        if self._writer is None:
            return
        try:
            self._writer.record(event)
            self._refused = None
        except LedgerError as error:
            # What the disk refuses waits in the writer, whose failure it is.
            self._refused = None if self._writer.failure is not None else str(error)

    async def record(self, run_id: str, given: Sequence[Mapping[str, Any]]) -> int | None:
        """A client's events, which are on disk when this returns; the last step among them.

        Raises EventRefusedError for the first that is none, and then records none, and LedgerAwayError.
        """
        made = [client_event(run_id, values) for values in given]
        if self._writer is not None:
            await self._durable(self._writer, made)
        return max((event.step for event in made if event.kind == "step"), default=None)  # type: ignore[attr-defined]

    def record_due(self) -> None:
        """Record the beginnings and ends of runs that are due, in the background and until it succeeds."""
        self._again = True
        if self._writer is not None and (self._recording is None or self._recording.done()):
            self._recording = asyncio.create_task(self._record_due(self._writer))

    async def _record_due(self, writer: EventWriter) -> None:
        while self._again:
            self._again = False
            try:
                for number, values in self._state.due():
                    await self._durable(writer, [run_event(values, self.fleet_run_id)])
                    self._state.recorded(number)
                self._state_failure = None
            except (LedgerAwayError, StateError) as error:
                # What the disk refuses is the writer's failure, which says when it is over.
                self._state_failure = None if writer.failure is not None else str(error)
                self._again = True
                await asyncio.sleep(_RETRY_S)

    async def _durable(self, writer: EventWriter, made: Sequence[Event]) -> None:
        self.record_turns()
        try:
            await asyncio.to_thread(writer.record_all, made)
        except LedgerError as error:
            raise LedgerAwayError(f"the ledger refuses events: {error}; send the same ones again") from None


FLEET_ENDED = "the fleet was ended"


def end_runs(folder: Path, record: Record, fleet_run_id: str) -> list[str]:
    """Close the runs that are open in the controller's state in `folder`, and record what the ledger has not heard of
    any run yet; returns which were closed. Raises StateError, and LedgerError if the ledger refuses."""
    if not (folder / FILE).exists():
        return []
    state = State(folder, GONE_S)
    try:
        runs = Runs(state, monotonic_ns(), records=True)
        open_runs = [run for run in runs if run.is_open]
        for run in open_runs:
            runs.close(run.run_id, run.facts.fence, "ended", FLEET_ENDED)
        for number, values in state.due():
            record(run_event(values, fleet_run_id), durable=True)
            state.recorded(number)
        return [run.run_id for run in open_runs]
    finally:
        state.close()
