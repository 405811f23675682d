"""Tables of pricing on a terminal: names and reasons in a ledger or a price book may hold anything, and are text."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as TerminalTable
from rich.text import Text

from rose.ledger.commands.output import visible
from rose.pricing.table import Element, Mark, Paragraph, Table

#: Widest table, in characters.
WIDTH = 100
_STYLES: dict[Mark | None, str | None] = {None: None, "strong": "bold", "alarm": "bold red"}


def show(parts: Iterable[Element], *, spaced: bool = False, console: Console | None = None) -> None:
    """Print a document; where it is `spaced` with an empty line after each part."""
    console = console or Console(width=WIDTH)
    for part in parts:
        # Ids and paths stay whole, and a table of many amounts is wider than others.
        console.print(rendered(part), soft_wrap=isinstance(part, str), crop=False)
        if spaced:
            console.print()


def rendered(part: Element) -> RenderableType:
    """What rich prints of a part: control characters are written out, and no text is markup."""
    match part:
        case Table():
            return _table(part)
        case Paragraph():
            style = "bold red" if part.alarm else ""
            return Text.assemble((visible(part.lead), "bold"), Text(visible(part.text), style=style))
        case _:
            return Text(visible(part))


def _table(table: Table) -> TerminalTable:
    title = f"{table.title}  [{table.terms}]" if table.terms else table.title
    notes = " ".join(table.notes)
    made = TerminalTable(
        title=Text(visible(title), style="bold") if title else None,
        title_justify="left",
        caption=Text(visible(notes), style="table.caption") if notes else None,
        box=box.SIMPLE_HEAD,
        width=WIDTH,
        show_header=table.header,
    )
    rows, footer = list(table.texts()), [table.row_text(row) for row in table.footer]
    for index, column in enumerate(table.columns):
        justify: JustifyMethod = "right" if column.right else "left"
        # An amount that goes on in the next line is read as a smaller one.
        amounts = [cell_len(texts[index]) for texts in (*rows, *footer)] if column.kind == "money" else []
        made.add_column(
            Text(visible(column.name)), justify=justify, overflow="fold", no_wrap=column.whole,
            min_width=max(amounts, default=None),
        )  # fmt: skip
    for number, texts in enumerate(rows):
        if table.grouped and number and table.starts_group(number):
            made.add_section()
        made.add_row(*(Text(visible(cell)) for cell in texts), style=_STYLES[table.marks.get(number)])
    made.add_section()
    for texts in footer:
        made.add_row(*(Text(visible(cell)) for cell in texts), style="bold")
    return made
