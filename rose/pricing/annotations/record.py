"""The events of annotations: written to the ledger beside closes and budgets, and read in their order."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

from rose.clock import utc_us
from rose.events import Ledger
from rose.ledger import examine, layout
from rose.ledger.verify import CLOSING_WRITER
from rose.ledger.writer import LedgerWriter
from rose.pricing.closing import store
from rose.pricing.closing.close import user
from rose.pricing.money import PricingError

_NAME_CHARACTERS_MAX = 200


def read(root: Path, needs: Mapping[str, Collection[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Action and details of each event of the actions in `needs`, in order.

    One that lacks a text that its action needs, or who recorded it and when, was not written by `rose` and is passed
    over; `date` is a day. Raises LedgerError for what is no ledger.
    """
    for action, detail in examine.all_recorded(layout.check(root), CLOSING_WRITER):
        if (
            action in needs
            and all(_is_text(name, detail.get(name)) for name in (*needs[action], "by"))
            and type(detail.get("at_us")) is int
        ):
            yield action, detail


def _is_text(name: str, value: object) -> bool:
    if not isinstance(value, str):
        return False
    if name == "date":
        with suppress(ValueError):
            return bool(date.fromisoformat(value))
        return False
    return True


@contextmanager
def changing(root: Path) -> Iterator[Path]:
    """Hold this from reading what stands to recording what follows from it; yields the ledger's folder."""
    root = layout.check(root)
    with store.lock(root):
        yield root


def append(root: Path, action: str, detail: Mapping[str, Any], *, by: str | None) -> dict[str, Any]:
    """Record an event, by `by` or else this user; on disk when this returns its details. The caller holds `changing`.

    Raises PricingError for a person without a name, LedgerError.
    """
    whole = {**detail, "by": one_line("who", by or user(), _NAME_CHARACTERS_MAX), "at_us": utc_us()}
    with LedgerWriter.open(root, CLOSING_WRITER, layout.UPKEEP_RUN_ID) as log:
        log.record(Ledger(action=action, at_us=whole["at_us"], detail_json=json.dumps(whole)), durable=True)
    return whole


def new_id() -> str:
    """Twelve hexadecimal characters."""
    return uuid.uuid4().hex[:12]


def one_line(field: str, text: str, characters_max: int) -> str:
    """The text without blanks around it. Raises PricingError naming `field` if it is empty, too long or no line."""
    text = text.strip()
    if not text:
        raise PricingError(f"{field} is empty: give some text")
    if len(text) > characters_max:
        raise PricingError(f"{field} has {len(text)} characters, and {characters_max} are the most")
    if not text.isprintable():
        raise PricingError(f"{field} {text!r} has a line break or a control character: write one line of text")
    return text
