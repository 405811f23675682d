"""What `rose` prints. Names, reasons and errors come from outside: they are shown, and nothing in them is obeyed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, Any

import typer
from rich.console import Console
from rich.text import Text

from rose.text import visible, visible_lines


def echo(*lines: str, err: bool = False, colour: str | None = None) -> None:
    """Print each of `lines` as one line."""
    for line in map(visible, lines):
        typer.echo(typer.style(line, fg=colour) if colour else line, err=err)


def echo_error(message: object) -> None:
    """Print an error on stderr. Its line ends stay, since a file's faults have a line each."""
    typer.secho(f"rose: {visible_lines(str(message))}", fg=typer.colors.RED, err=True)


def echo_data(text: str) -> None:
    """Print JSON, CSV, SQL or another text for a program: exact for a file or a pipe, escaped on a terminal."""
    text = text.removesuffix("\n")
    # `color`: or escape sequences in the data would be left out.
    typer.echo(visible_lines(text) if sys.stdout.isatty() else text, color=True)


def progress(*, err: bool) -> Callable[[str], None]:
    """Return what prints a line with the seconds since now before it."""
    began = time.monotonic()
    return lambda text: typer.echo(
        f"{typer.style(f'{time.monotonic() - began:6.1f} s', dim=True)}  {visible(text)}", err=err
    )


def styled(text: str, style: str = "") -> Text:
    """Return `text` in a style, for a `Screen`."""
    return Text(visible(text), style=style)


class Screen(Console):
    """A console of rich's that takes text for text, in the cells and titles of tables too, and never for markup."""

    def __init__(self, *, width: int | None = None, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(width=width, stderr=stderr, file=file, highlight=False)

    def render_str(self, text: str, *, style: Any = "", justify: Any = None, overflow: Any = None, **_: Any) -> Text:
        """Return what is printed of text that has no style of its own."""
        return Text(visible(text), style=style, justify=justify, overflow=overflow)
