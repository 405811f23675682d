"""The ledger's events about the books: adopted price books, budgets, closes and corrections."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from rose.events import LedgerAction
from rose.ledger.files import layout
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter


def lock(ledger: Ledger) -> AbstractContextManager[None]:
    """Return a lock on the books, which the caller of `record` must hold."""
    return layout.locked(ledger.folder / "locks" / ".closing.lock")  # No writer's name begins with a dot.


def record(ledger: Ledger, action: str, detail: Mapping[str, Any], at_us: int, event_id: str | None = None) -> None:
    """Write an event, on disk when this returns."""
    event = LedgerAction(action=action, at_us=at_us, event_id=event_id, detail_json=json.dumps(detail))
    with LedgerWriter.open(ledger.folder, layout.CLOSING_WRITER, layout.UPKEEP_RUN_ID) as log:
        log.record(event)


def recorded(ledger: Ledger, action: str) -> list[dict[str, Any]]:
    return [detail for what, detail in ledger.book_events if what == action]
