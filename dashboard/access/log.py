"""The access log: a line of JSON for each page that was opened, each file that was taken, and each refusal."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from dashboard.access.people import Person
from dashboard.link import Link

FILE = "access.jsonl"
#: With those before it, 110 MB at most.
_BYTES_MAX, _FILES_BEFORE = 10_000_000, 10
_TEXT_MAX, _NAMES_MAX = 200, 30
#: Parameters of the dashboard's own links. Of any other the name is kept alone: nobody knows what somebody pasted.
_SHOWN = frozenset(field.name for field in fields(Link))
_HIDDEN = "(not logged)"


class AccessLog:
    """Lines are appended whole, whatever thread they come from. One process writes a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._handler = _PrivateFile(self.path, maxBytes=_BYTES_MAX, backupCount=_FILES_BEFORE, encoding="utf-8")

    def write(
        self,
        person: Person | None,
        action: str,
        *,
        page: str,
        ledger: str,
        query: Mapping[str, str],
        detail: str | None = None,
    ) -> None:
        """Add a line. Raises OSError if it cannot be written: what is not logged must not be shown."""
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "person": person and _short(person.name),
            "subject": person and _short(person.subject),
            "roles": sorted(person.roles) if person else [],
            "action": action,
            "page": _short(page),
            "ledger": ledger,
            "query": shown(query),
        } | ({} if detail is None else {"detail": _short(detail)})
        # Every character that ends a line, moves a cursor or turns text around is written as its number.
        text = json.dumps(line, ensure_ascii=True)
        self._handler.handle(logging.makeLogRecord({"msg": text.replace("\x7f", "\\u007f")}))

    def close(self) -> None:
        """Let go of the file."""
        self._handler.close()


def shown(query: Mapping[str, str]) -> dict[str, str]:
    """A page's query as it is logged: the values of what a page of the dashboard knows, and the names of the rest."""
    names = list(query)[:_NAMES_MAX]
    return {_short(name): _short(query[name]) if name in _SHOWN else _HIDDEN for name in names}


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


class _PrivateFile(RotatingFileHandler):
    """Read by its owner alone; raises what goes wrong, where the one it extends would print it and go on."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise  # noqa: PLE0704 - it is called while the error is handled
