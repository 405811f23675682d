"""A table of money, or of what money rests on, as data; a terminal, a page, a sheet and a screen show this one.

Who builds one says what it shows; how it looks is said where it is shown: `rose.pricing.console` for a terminal,
`rose.pricing.export.markup` for HTML, `rose.pricing.export.workbook` for Excel, `dashboard.frame` for a screen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rose.pricing.money import format_money, format_ns

if TYPE_CHECKING:
    from rose.pricing.figures import Stamp

#: What a column holds: text, text that stands for a number, nano-units of a currency, nanoseconds, a count, bytes,
#: mW*ns, or a price as text.
Kind = Literal["text", "figure", "money", "hours", "count", "gb", "kwh", "price"]
#: Kinds of whole numbers, which can be added up.
SUMMED: frozenset[Kind] = frozenset({"money", "hours", "count", "gb", "kwh"})
#: How a row stands out.
Mark = Literal["strong", "alarm"]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and what stands below it. `unit` is the currency of `money`; a terminal breaks no `whole` cell."""

    name: str
    kind: Kind = "text"
    unit: str = "USD"
    whole: bool = False

    @property
    def right(self) -> bool:
        """Whether its cells are set flush right."""
        return self.kind != "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of plain values below columns: text where a column holds text, whole numbers where it is `SUMMED`, or None.

    `view` says of which view its money is, or what else its figures are; `stamp` is what they all have in common. The
    `footer` are totals below the rows. A table that is `grouped` has a line where the first column changes, and shows a
    value of that column once. `marks` are of rows, by their number. `name` is short, for a sheet.

    Raises ValueError for a row that has not one cell for each column.
    """

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
    name: str = ""

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.footer):
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r} has {len(self.columns)} columns and a row of {len(row)}: {row}")

    @property
    def terms(self) -> str:
        """What must stand beside its figures."""
        return "; ".join(filter(None, (self.view, str(self.stamp or ""))))

    def total(self, index: int) -> int:
        """The sum of a column of whole numbers."""
        return sum(int(row[index] or 0) for row in self.rows)

    def with_total(self) -> Table:
        """With the sum of each column of whole numbers in its footer; as it is where it has none.

        A column in which no row has a value has no sum.
        """
        if not any(column.kind in SUMMED for column in self.columns):
            return self
        empty = {
            index for index in range(len(self.columns)) if self.rows and all(row[index] is None for row in self.rows)
        }
        sums = [
            self.total(index) if column.kind in SUMMED and index not in empty else None
            for index, column in enumerate(self.columns)
        ]
        return dataclasses.replace(self, footer=(("total", *sums[1:]),))

    def starts_group(self, number: int) -> bool:
        """Whether row `number` is the first one with its value in the first column."""
        return not self.grouped or number == 0 or self.rows[number][0] != self.rows[number - 1][0]

    def texts(self, rows_max: int | None = None) -> Iterator[list[str]]:
        """The rows as people read them, the first `rows_max` of them."""
        for number, row in enumerate(self.rows[:rows_max]):
            first, *rest = self.row_text(row)
            yield [first if self.starts_group(number) else "", *rest]

    def row_text(self, row: Row) -> list[str]:
        """The cells of a row, or of the footer, as people read them."""
        return [cell_text(column, value) for column, value in zip(self.columns, row, strict=True)]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Prose above, between or below tables, wrapped where it is shown. `lead` comes before it and stands out.

    `more` are further lines: a line end inside a text is shown as `\\n`.
    """

    text: str
    lead: str = ""
    alarm: bool = False
    more: tuple[str, ...] = ()

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> Paragraph:
        """Return a paragraph of these lines."""
        first, *more = [*lines] or [""]
        return cls(first, more=tuple(more))


#: What a document is shown as, one after the other; plain text is a line whose ids and paths stay whole.
Element = Table | Paragraph | str


def columns(*names: str, text: Collection[str] = (), whole: Collection[str] = ()) -> tuple[Column, ...]:
    """Columns of figures in words; the first one, and those named in `text`, hold text."""
    return tuple(
        Column(name, "text" if index == 0 or name in text else "figure", whole=name in whole)
        for index, name in enumerate(names)
    )


def cell_text(column: Column, value: Any) -> str:
    """One value as people read it; nothing is no text."""
    if value is None:
        return ""
    match column.kind:
        case "money":
            return format_money(int(value), column.unit)
        case "hours":
            return format_ns(int(value))
        case "count":
            return f"{value:,}"
        case "gb":
            return f"{value / 1e9:,.3f}"
        case "kwh":
            return f"{value / 3.6e18:,.4f}"
    return str(value)


def notes(*texts: str) -> tuple[str, ...]:
    """Those that say something."""
    return tuple(filter(None, texts))
