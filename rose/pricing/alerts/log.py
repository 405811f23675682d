"""The log of messages: what was queued, each try, what became of it; events of the ledger's writer `alerts`.

A message is on disk before it is first sent, and the end of each try after it. Who was killed between the two sends the
same message, with the same id, again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rose.clock import iso, utc_us
from rose.events import Ledger
from rose.ledger import examine, layout
from rose.ledger.writer import LedgerWriter
from rose.pricing.alerts.due import Sent
from rose.pricing.alerts.message import Message

WRITER = "alerts"
QUEUED, DELIVERED, FAILED, GIVEN_UP = "alert_queued", "alert_delivered", "alert_failed", "alert_given_up"
State = Literal["waiting", "delivered", "given up"]
#: How a message stands after a try that ended so.
_STATES: dict[str, State] = {DELIVERED: "delivered", FAILED: "waiting", GIVEN_UP: "given up"}
_ERROR_CHARACTERS_MAX = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A message and how it stands. `last_us` is when it was last tried, UTC microseconds; None if it never was."""

    message: Message
    state: State = "waiting"
    tries: int = 0
    last_us: int | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        message = self.message
        return {
            "id": message.message_id,
            "channel": message.channel,
            "kind": message.kind,
            "key": message.key,
            "title": message.title,
            "provenance": message.provenance,
            "queued_at": iso(message.at_us),
            "state": self.state,
            "tries": self.tries,
            "last_try_at": None if self.last_us is None else iso(self.last_us),
            "error": self.error,
        }


@contextmanager
def exclusive(root: Path) -> Iterator[Path]:
    """Hold this from reading the log to recording what follows from it; yields the ledger's folder."""
    root = layout.check(root)
    # No writer's name begins with a dot.
    with layout.locked(root / "locks" / f".{WRITER}.lock"):
        yield root


def load(root: Path) -> list[Entry]:
    """Every message in the order in which they were queued. Raises LedgerError for a folder that is no ledger."""
    entries: dict[str, Entry] = {}
    for action, detail in examine.all_recorded(layout.check(root), WRITER):
        if action == QUEUED:
            # What is no message was not written by `rose`.
            with suppress(KeyError, TypeError):
                entries[detail["id"]] = Entry(message=Message.from_record(detail))
        elif (state := _STATES.get(action)) is not None and (known := entries.get(str(detail.get("id")))) is not None:
            tries, last_us, error = detail.get("tries"), detail.get("at_us"), detail.get("error")
            if type(tries) is int and type(last_us) is int:
                entries[known.message.message_id] = Entry(
                    message=known.message, state=state, tries=tries, last_us=last_us, error=error and str(error)
                )
    return list(entries.values())


def queue(root: Path, messages: list[Message]) -> None:
    """Put messages on disk, to be sent. The caller holds `exclusive`. Raises LedgerError."""
    if messages:
        _record(root, [(QUEUED, message.record(), message.at_us) for message in messages])


def tried(root: Path, message: Message, action: str, *, tries: int, error: str | None = None) -> Entry:
    """Put the end of a try on disk (one of DELIVERED, FAILED, GIVEN_UP). The caller holds `exclusive`."""
    at_us = utc_us()
    error = None if error is None else error[:_ERROR_CHARACTERS_MAX]
    detail = {"id": message.message_id, "channel": message.channel, "tries": tries, "error": error, "at_us": at_us}
    _record(root, [(action, detail, at_us)])
    return Entry(message=message, state=_STATES[action], tries=tries, last_us=at_us, error=error)


def last_sent(entries: list[Entry]) -> dict[tuple[str, str], Sent]:
    """The last message on each alert by channel and key."""
    return {
        (message.channel, message.key): Sent(
            status=message.kind, level=message.level, at_us=message.at_us, title=message.title
        )
        for message in (entry.message for entry in entries)
        if message.kind in ("firing", "resolved")
    }


def _record(root: Path, events: list[tuple[str, dict[str, Any], int]]) -> None:
    with LedgerWriter.open(root, WRITER, layout.UPKEEP_RUN_ID) as log:
        for action, detail, at_us in events[:-1]:
            log.record(Ledger(action=action, at_us=at_us, detail_json=json.dumps(detail)), durable=False)
        action, detail, at_us = events[-1]
        log.record(Ledger(action=action, at_us=at_us, detail_json=json.dumps(detail)), durable=True)
