"""Notes on a day: what happened then, for whoever reads a figure of it later."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rose.clock import iso
from rose.errors import did_you_mean
from rose.pricing.annotations import record
from rose.pricing.money import PricingError

ADDED, REMOVED = "note_added", "note_removed"
_NEEDS = {ADDED: ("id", "date", "text"), REMOVED: ("id",)}
_TEXT_CHARACTERS_MAX = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A note on a UTC day, and who removed it if it was. Times are UTC microseconds since the Unix epoch."""

    note_id: str
    day: date
    text: str
    by: str
    at_us: int
    removed_by: str | None = None
    removed_us: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.note_id, "date": str(self.day), "text": self.text, "by": self.by, "at": iso(self.at_us),
            "removed_by": self.removed_by, "removed_at": None if self.removed_us is None else iso(self.removed_us),
        }  # fmt: skip


def load(root: Path, *, removed: bool = False) -> list[Note]:
    """The notes by day, with `removed` also those that were removed. Raises LedgerError."""
    known: dict[str, dict[str, Any]] = {}
    for action, detail in record.read(root, _NEEDS):
        if action == ADDED:
            known[detail["id"]] = detail
        elif detail["id"] in known:
            known[detail["id"]] |= {"removed_by": detail["by"], "removed_us": detail["at_us"]}
    notes = [_note(detail) for detail in known.values()]
    return sorted((note for note in notes if removed or note.removed_by is None), key=lambda note: note.day)


def add(root: Path, day: str, text: str, *, by: str | None = None) -> Note:
    """Put a note on a day, written as 2026-11-03. Raises PricingError for a text or day that is none, LedgerError."""
    try:
        at = date.fromisoformat(day)
    except ValueError:
        raise PricingError(f"date {day!r} is no day; write it as 2026-11-03") from None
    text = record.one_line("text", text, _TEXT_CHARACTERS_MAX)
    with record.changing(root) as folder:
        return _note(record.append(folder, ADDED, {"id": record.new_id(), "date": str(at), "text": text}, by=by))


def remove(root: Path, note_id: str, *, by: str | None = None) -> Note:
    """Remove a note; it stays in the ledger. Raises PricingError for one that there is none of, LedgerError."""
    with record.changing(root) as folder:
        known = {note.note_id: note for note in load(folder)}
        if note_id not in known:
            raise PricingError(f"there is no note {note_id!r}{did_you_mean(note_id, known)}")
        record.append(folder, REMOVED, {"id": note_id}, by=by)
    return known[note_id]


def _note(detail: dict[str, Any]) -> Note:
    fields = {name: detail.get(name) for name in ("removed_by", "removed_us")}
    return Note(
        note_id=detail["id"], day=date.fromisoformat(detail["date"]), text=detail["text"], by=detail["by"],
        at_us=detail["at_us"], **fields,
    )  # fmt: skip
