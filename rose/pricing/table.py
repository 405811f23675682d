"""A table of figures as data, for a terminal, a page, a sheet or a screen."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rose.pricing.figures import Figure
from rose.pricing.money import format_ns, format_usd

if TYPE_CHECKING:
    from rose.pricing.figures import Stamp

#: Text, a `Figure` (or text for a number), nano-dollars, nanoseconds, or a count.
Kind = Literal["text", "figure", "money", "hours", "count"]
Mark = Literal["strong", "alarm"]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. If `whole` is set, a terminal never breaks the column's cells."""

    name: str
    kind: Kind = "text"
    whole: bool = False

    @property
    def right(self) -> bool:
        return self.kind != "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of text, numbers, Figures and None. `view` and `stamp` apply to all figures. `footer` has totals.

    If `grouped`, a repeated first cell is shown only once. `marks` maps the number of a row to its mark.
    Raises ValueError if a row does not have one cell for each column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    view: str = ""
    stamp: Stamp | None = None
    notes: tuple[str, ...] = ()
    footer: tuple[Row, ...] = ()
    marks: Mapping[int, Mark] = field(default_factory=dict)
    grouped: bool = False
    header: bool = True

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.footer):
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r} has {len(self.columns)} columns and a row of {len(row)}: {row}")

    @property
    def terms(self) -> str:
        return "; ".join(filter(None, (self.view, str(self.stamp or ""))))

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(cell for row in (*self.rows, *self.footer) for cell in row if isinstance(cell, Figure))

    def plain(self) -> Table:
        if not self.figures:
            return self
        columns, cells = [], []
        rows = [*self.rows, *self.footer]
        for index, column in enumerate(self.columns):
            values = [row[index] for row in rows]
            columns.append(column)
            cells.append([value.marked_short_text if isinstance(value, Figure) else value for value in values])
            if any(isinstance(value, Figure) and value.low is not None for value in values):
                columns.append(Column(f"95% of {column.name}", "figure"))
                cells.append([value.short_interval if isinstance(value, Figure) else None for value in values])
        texts = tuple(zip(*cells, strict=True))
        shown = {cell for row in rows for cell in row if isinstance(cell, str)}
        return dataclasses.replace(
            self,
            columns=tuple(columns),
            rows=texts[: len(self.rows)],
            footer=texts[len(self.rows) :],
            notes=notes(
                *self.notes,
                _reasons(
                    "Why a cell has a dash",
                    (one.text for one in self.figures if one.value is None and one.why not in shown),
                ),
                _reasons("No interval", (one.no_interval for one in self.figures if one.no_interval)),
            ),
        )

    def records(self) -> list[dict[str, Any]]:
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in (*self.rows, *self.footer)]

    def row(self, key: str) -> dict[str, Any]:
        """Return the cells, by column, of the row whose first cell is `key`. Raises KeyError."""
        return {row[self.columns[0].name]: row for row in self.records()}[key]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "view": self.view,
            "rows": [
                {name: cell.to_json() if isinstance(cell, Figure) else cell for name, cell in record.items()}
                for record in self.records()
            ],
            "notes": list(self.notes),
        }

    def starts_group(self, number: int) -> bool:
        return not self.grouped or number == 0 or self.rows[number][0] != self.rows[number - 1][0]

    def texts(self) -> Iterator[list[str]]:
        for number, row in enumerate(self.rows):
            first, *rest = self.row_text(row)
            yield [first if self.starts_group(number) else "", *rest]

    def row_text(self, row: Row) -> list[str]:
        return [cell_text(column, value) for column, value in zip(self.columns, row, strict=True)]


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    lead: str = ""
    alarm: bool = False
    more: tuple[str, ...] = ()
    good: bool | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        return f"{self.lead}{self.text}", *self.more

    def to_json(self) -> list[str]:
        return list(self.lines)


Element = Table | Paragraph | str  # A part of a document; in plain text ids and paths stay whole.


def columns(*names: str, text: Collection[str] = (), whole: Collection[str] = ()) -> tuple[Column, ...]:
    return tuple(
        Column(name, "text" if index == 0 or name in text else "figure", whole=name in whole)
        for index, name in enumerate(names)
    )


def cell_text(column: Column, value: Any) -> str:
    if value is None:
        return ""
    match column.kind:
        case "money":
            return format_usd(int(value))
        case "hours":
            return format_ns(int(value))
        case "count":
            return f"{value:,}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Section:
    parts: Mapping[str, Table | Paragraph]

    def table(self, name: str) -> Table:
        part = self.parts[name]
        assert isinstance(part, Table)
        return part

    def paragraph(self, name: str) -> Paragraph:
        part = self.parts[name]
        assert isinstance(part, Paragraph)
        return part

    def figure(self, name: str, key: str, column: str = "value") -> Figure:
        cell = self.table(name).row(key)[column]
        assert isinstance(cell, Figure)
        return cell

    def to_json(self) -> dict[str, Any]:
        return {name: part.to_json() for name, part in self.parts.items()}


def values(title: str, figures: Mapping[str, Figure], stamp: Stamp, view: str, **more: Any) -> Table:
    return Table(
        title=title, view=view, stamp=stamp, columns=columns("what", "value"), rows=(*figures.items(),), **more
    )


def report_table(
    stamp: Stamp, title: str, head: str, rows: Iterable[Row], text: Collection[str] = (), **more: Any
) -> Table:
    return Table(title=title, stamp=stamp, columns=columns(*head.split(" | "), text=text), rows=tuple(rows), **more)


def notes(*texts: str) -> tuple[str, ...]:
    return tuple(filter(None, texts))


def _reasons(head: str, texts: Iterable[str]) -> str:
    reasons = dict.fromkeys(texts)
    return f"{head}: {'. '.join(reasons)}." if reasons else ""
