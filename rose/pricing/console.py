"""Tables on a terminal. Text from a ledger or a price book is escaped."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table as TerminalTable

from rose.pricing.table import Element, Mark, Paragraph, Table
from rose.terminal import Screen, styled, visible

WIDTH = 100  # Characters of a table, unless it needs more and the terminal has them.
_COLUMN_MIN = 6
_STYLES: dict[Mark | None, str | None] = {None: None, "strong": "bold", "alarm": "bold red"}


def show(parts: Iterable[Element], *, spaced: bool = False, screen: Screen | None = None) -> None:
    screen = screen or Screen(width=max(WIDTH, Screen().width))
    for part in parts:
        screen.print(rendered(part, screen.width), soft_wrap=isinstance(part, str), crop=False)
        if spaced:
            screen.print()


def rendered(part: Element, width: int = WIDTH) -> RenderableType:
    match part:
        case Table():
            return _table(part, width)
        case Paragraph():
            style = "bold red" if part.alarm else ""
            first, *more = (styled(line, style) for line in (part.text, *part.more))
            return Group(styled(part.lead, "bold") + first, *more)
        case _:
            return part


def _table(table: Table, width: int) -> TerminalTable:
    table = table.plain()
    title = f"{table.title}  [{table.terms}]" if table.terms else table.title
    made = TerminalTable(
        title=styled(title, "bold") if title else None,
        title_justify="left",
        caption=" ".join(table.notes) or None,
        box=box.SIMPLE_HEAD,
        show_header=table.header,
    )
    rows, footer = list(table.texts()), [table.row_text(row) for row in table.footer]
    cells = [[visible(texts[index]) for texts in (*rows, *footer)] for index in range(len(table.columns))]
    widths, padding = _widths(table, cells, width)
    made.padding = (0, padding)
    for column, column_width in zip(table.columns, widths, strict=True):
        justify: JustifyMethod = "right" if column.right else "left"
        made.add_column(column.name, justify=justify, overflow="fold", no_wrap=column.whole, width=column_width)
    made.width = max(WIDTH, _edges(table, padding) + sum(widths))
    for number, texts in enumerate(rows):
        if table.grouped and number and table.starts_group(number):
            made.add_section()
        made.add_row(*texts, style=_STYLES[table.marks.get(number)])
    made.add_section()
    for texts in footer:
        made.add_row(*texts, style="bold")
    return made


def _edges(table: Table, padding: int) -> int:
    return (2 * padding + 1) * len(table.columns) + 1


def _widths(table: Table, cells: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """Return the widths of the columns, and their padding. A word may be broken, but a number never is."""
    natural, words, unbroken = [], [], []
    for column, texts in zip(table.columns, cells, strict=True):
        natural.append(_longest([visible(column.name), *texts]))
        words.append(_longest(word for text in (visible(column.name), *texts) for word in text.split()))
        whole = column.kind == "money" or column.whole
        unbroken.append(_longest(texts if whole else (word for text in texts if column.right for word in text.split())))
    padding = int(sum(unbroken) + _edges(table, 1) <= width)
    room = width - _edges(table, padding)
    return _capped(natural, _capped(words, unbroken, room), room), padding


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=1)


def _capped(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    def capped(width: int) -> list[int]:
        return [max(low, min(want, width)) for want, low in zip(wanted, least, strict=True)]

    return next(
        (made for width in range(room, _COLUMN_MIN - 1, -1) if sum(made := capped(width)) <= room), capped(_COLUMN_MIN)
    )
