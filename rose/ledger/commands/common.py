"""Code that the ledger's commands share. Exit code 0 means success, 1 a problem, 2 an invalid command."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table

from rose.clock import iso
from rose.errors import UserError
from rose.ledger.commands.output import cell_text, json_text, readable
from rose.terminal import Screen, echo, echo_data, echo_error

if TYPE_CHECKING:
    from rose.ledger.ledger import Ledger

LedgerOption = Annotated[
    Path | None, typer.Option("--ledger", envvar="ROSE_LEDGER", help="Folder of the ledger. Default: ./ledger.")
]
_CELL = 100  # Characters of a cell on a terminal.
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def open_ledger(folder: Path | None, *, allow_unverified: bool = False) -> Ledger:
    from rose.ledger.ledger import Ledger

    return Ledger(folder or Path("ledger"), allow_unverified=allow_unverified)


@contextmanager
def clear_errors(unreadable_code: int = 2) -> Iterator[None]:
    """Print an error on stderr and exit: with `unreadable_code` if the ledger is unreadable, and otherwise with 2."""
    try:
        yield
    except UserError as error:
        fail(str(error))
    except Exception as error:
        fail(unreadable(error), unreadable_code)


def unreadable(error: Exception) -> str:
    """Return a message if a file is unreadable or too many files are open. Raise any other `error` again."""
    import duckdb

    from rose.ledger.files import layout

    if not isinstance(error, duckdb.Error) and getattr(error, "errno", None) != errno.EMFILE:
        raise error
    return f"the ledger cannot be read: {layout.unreadable(str(error).splitlines()[0])}"


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import Progress

    console = Screen(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def until_signal() -> threading.Event:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended


def read_token(file: Path | None, variable: str) -> str | None:
    """Return the token in `file`. Without `file`, return the one in the environment variable `variable`, or None."""
    if file is None:
        return os.environ.get(variable) or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--token-file {file}: {getattr(error, 'strerror', None) or error}")
    return text or fail(f"--token-file {file} is empty; put the token into it")


def seconds(text: str) -> float:
    """Return the seconds of a duration such as 30s, 5m, 12h or 90d."""
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)) or float(match[1]) == 0:
        fail(f"{text!r} is not a duration; give a number above 0 followed by s, m, h or d, such as 5m or 90d")
    return float(match[1]) * _UNITS_S[match[2]]


def time_text(us: int | None) -> str | None:
    return None if us is None else f"{iso(us)[:19]}Z"


def fail(message: str, exit_code: int = 2) -> NoReturn:
    echo_error(message)
    raise typer.Exit(exit_code)


def print_json(value: Any) -> None:
    text, count = json_text(value)
    echo_data(text)
    if count:
        echo(f"JSON has no NaN and no infinity: null stands for {count} such numbers.", err=True)


def print_table(columns: list[str], rows: list[Any]) -> None:
    """Print rows for people. A column's name decides the units of its times and sizes. A terminal gets the beginning of
    long cells, other outputs get whole cells on lines of any length."""
    terminal = sys.stdout.isatty()
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    texts = [[readable(*cell) or cell_text(cell[1]) for cell in zip(columns, row, strict=True)] for row in rows]
    for row in texts:
        table.add_row(*(f"{text[:_CELL]}…" if terminal and len(text) > _CELL else text for text in row))
    Screen(width=None if terminal else 1_000_000).print(table)
    if terminal and len(columns) > Screen().width // 10:
        echo(f"{len(columns)} columns are too many for this width: select fewer, or give --json.", err=True)
    if terminal and any(len(text) > _CELL for row in texts for text in row):
        echo("Long cells are cut. In a file or a pipe they are whole.", err=True)
