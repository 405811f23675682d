"""Puts events into the ledger for the controller, which never waits for it but where a client asked for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from rose.errors import UserError
from rose.events import Event, Record
from rose.ledger.layout import LedgerError
from rose.runtime.scheduling.runs.recording import client_event, run_event, turn_event
from rose.runtime.scheduling.runs.state import State, StateError

#: How long after the ledger refused the event of a run it is tried again.
_RETRY_S = 5.0


class LedgerAwayError(UserError):
    """The ledger refuses events now; the same ones may be sent again."""

    exit_code = 1


class Recorder:
    """`record` is a ledger writer's; None: nothing is recorded. Make it, and close it, inside a running loop."""

    def __init__(self, record: Record | None, state: State, fleet_run_id: str | None) -> None:
        self._record, self._state = record, state
        self.fleet_run_id = fleet_run_id
        #: Why the ledger refuses; None while all is well.
        self.failure: str | None = None
        self._recording: asyncio.Task[None] | None = None
        self._again = False

    async def close(self) -> None:
        """What is not in the ledger by now is left to the next process of this state."""
        if self._recording is not None:
            done, _ = await asyncio.wait({self._recording}, timeout=1.0)
            if not done:
                self._recording.cancel()

    def catch_up(self, kept: Iterable[bytes]) -> None:
        """Record what the process before may not have: events of runs, and of the turns that are kept."""
        for values in kept:
            self.record_turn(orjson.loads(values))
        self.record_due()

    def record_turn(self, attempts: Iterable[Mapping[str, Any]]) -> None:
        """Events of one turn, as `recording.turn_fields` made them. They are on disk within the flush interval."""
        for values in attempts:
            self.note(turn_event(values))

    def note(self, event: Event) -> None:
        """An event that nobody waits for; it is on disk within the flush interval."""
        if self._record is None:
            return
        try:
            self._record(event)
            self.failure = None
        except LedgerError as error:
            self.failure = str(error)

    async def record(self, run_id: str, given: Sequence[Mapping[str, Any]]) -> int | None:
        """A client's events, which are on disk when this returns; the last step among them.

        Raises EventRefusedError for the first that is none, and then records none, and LedgerAwayError.
        """
        made = [client_event(run_id, values) for values in given]
        if self._record is not None:
            await self._durable(made)
        return max((event.step for event in made if event.kind == "step"), default=None)  # type: ignore[attr-defined]

    def record_due(self) -> None:
        """Record the beginnings and ends of runs that are due, in the background and until it succeeds."""
        self._again = True
        if self._record is not None and (self._recording is None or self._recording.done()):
            self._recording = asyncio.create_task(self._record_due())

    async def _record_due(self) -> None:
        while self._again:
            self._again = False
            try:
                for number, values in self._state.due():
                    await self._durable([run_event(values, self.fleet_run_id)])
                    self._state.recorded(number)
            except (LedgerAwayError, StateError) as error:
                self.failure = str(error)
                self._again = True
                await asyncio.sleep(_RETRY_S)

    async def _durable(self, made: Sequence[Event]) -> None:
        try:
            await asyncio.to_thread(self._record_all, made)
            self.failure = None
        except LedgerError as error:
            self.failure = str(error)
            raise LedgerAwayError(f"the ledger refuses events: {error}; send the same ones again")

    def _record_all(self, made: Sequence[Event]) -> None:
        assert self._record is not None
        for event in made[:-1]:
            self._record(event, durable=False)
        # What is recorded before it is on disk with it.
        self._record(made[-1], durable=True)
