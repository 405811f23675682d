"""A message to people and programs: as JSON, as plain text and as HTML in which every text is escaped."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rose.clock import iso
from rose.pricing.export import markup
from rose.pricing.table import Table, columns
from rose.text import visible

Kind = Literal["firing", "resolved", "report", "test"]
_SUBJECT_CHARACTERS_MAX = 150


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A table of a message: text in its cells, the first column names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of_table(cls, table: Table, rows_max: int) -> Section:
        """The first rows of a table, and its totals, as people read them."""
        rows = [*table.texts(rows_max), *(table.row_text(row) for row in table.footer)]
        return cls(title=table.title, columns=tuple(column.name for column in table.columns), rows=_rows(rows))

    @property
    def table(self) -> Table:
        return Table(title=self.title, columns=columns(*self.columns), rows=self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """What goes to one channel. The id stays the same however often it is sent, so that who gets it can tell.

    `key` is that of the alert, or of the report and its time; `level` that of the alert.
    """

    message_id: str
    channel: str
    kind: Kind
    key: str
    title: str
    sentences: tuple[str, ...]
    at_us: int
    provenance: str
    level: int = 0
    sections: tuple[Section, ...] = ()

    @property
    def subject(self) -> str:
        """One line that can stand in a header."""
        mark = {"firing": "", "resolved": "resolved: ", "report": "", "test": "test: "}[self.kind]
        simulated = "" if self.provenance == "live" else f"[{self.provenance.upper()}] "
        # Every character that ends a line somewhere is a blank of `split`.
        line = visible(" ".join(f"ROSE: {simulated}{mark}{self.title}".split()))
        return line if len(line) <= _SUBJECT_CHARACTERS_MAX else f"{line[: _SUBJECT_CHARACTERS_MAX - 1]}…"

    @property
    def text(self) -> str:
        """Plain text, with control characters written out."""
        from rose.pricing import console
        from rose.terminal import Screen

        screen = Screen(file=(written := io.StringIO()), width=100)
        console.show(self.sentences, screen=screen)
        for section in self.sections:
            console.show(["", section.table], screen=screen)
        footer = f"{iso(self.at_us)[:19]}Z, {self.provenance}, message {self.message_id}"
        return f"{written.getvalue().rstrip()}\n\n{footer}\n"

    @property
    def html(self) -> str:
        """A page of HTML."""
        return markup.page(
            "message.html.j2",
            title=self.subject,
            sentences=self.sentences,
            sections=[section.table for section in self.sections],
            at=f"{iso(self.at_us)[:19]}Z",
            provenance=self.provenance,
            message_id=self.message_id,
        )

    def to_json(self) -> dict[str, Any]:
        """For programs; `text` is for people."""
        return {
            "id": self.message_id,
            "kind": self.kind,
            "key": self.key,
            "level": self.level,
            "title": self.title,
            "sentences": list(self.sentences),
            "at": iso(self.at_us),
            "provenance": self.provenance,
            "sections": [
                {"title": section.title, "columns": list(section.columns), "rows": [list(row) for row in section.rows]}
                for section in self.sections
            ],
            "subject": self.subject,
            "text": f"{self.subject}\n{' '.join(self.sentences)}",
        }

    def body(self) -> bytes:
        """The JSON that is posted: the same bytes however often."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()

    def record(self) -> dict[str, Any]:
        """What the ledger keeps of it; `from_record` gives back an equal message."""
        plain = self.to_json()
        kept = ("id", "kind", "key", "level", "title", "sentences", "provenance", "sections")
        return {name: plain[name] for name in kept} | {"channel": self.channel, "at_us": self.at_us}

    @classmethod
    def from_record(cls, kept: Mapping[str, Any]) -> Message:
        """Raises KeyError or TypeError for what is no message."""
        texts = [kept[name] for name in ("id", "channel", "kind", "key", "title", "provenance")]
        numbers = [kept[name] for name in ("level", "at_us")]
        if not all(isinstance(text, str) for text in (*texts, *kept["sentences"])) or not all(
            type(number) is int for number in numbers
        ):
            raise TypeError("a field has the wrong type")
        sections = tuple(
            Section(title=one["title"], columns=tuple(one["columns"]), rows=_rows(one["rows"]))
            for one in kept["sections"]
        )
        return cls(
            message_id=kept["id"],
            channel=kept["channel"],
            kind=kept["kind"],
            key=kept["key"],
            level=kept["level"],
            title=kept["title"],
            sentences=tuple(kept["sentences"]),
            at_us=kept["at_us"],
            provenance=kept["provenance"],
            sections=sections,
        )


def new_id() -> str:
    """32 hexadecimal characters."""
    return uuid.uuid4().hex


def _rows(rows: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(str(cell) for cell in row) for row in rows)
