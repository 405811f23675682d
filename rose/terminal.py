"""Prints the output of the `rose` command. Text from outside is shown literally, and never interpreted."""

import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import typer
from rich.console import Console
from rich.text import Text

from rose.errors import UserError, not_installed

_SEPARATORS = ("Zl", "Zp")  # Like C categories, screens interpret these.
_BLANK = {  # Characters without ink, except emoji's variation selector.
    *map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)),
    *map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE0F), *range(0xE0100, 0xE01F0))),
}


class Escapes(dict[int, str]):
    """A table for `str.translate` that escapes invisible characters, except those in `kept`."""

    def __init__(self, escape: Callable[[str], str], *, kept: str = "") -> None:
        super().__init__({ord(char): char for char in kept})
        self._escape = escape

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        hidden = category.startswith("C") or category in _SEPARATORS or char in _BLANK
        self[code] = self._escape(char) if hidden else char
        return self[code]


def _as_in_python(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


_LINE, _LINES = Escapes(_as_in_python), Escapes(_as_in_python, kept="\n\t")


def visible(text: str) -> str:
    """Return `text` as one harmless line, with `\\n` for the end of a line."""
    return text.translate(_LINE)


def visible_lines(text: str) -> str:
    return text.translate(_LINES)


def echo(*lines: str, err: bool = False, colour: str | None = None) -> None:
    for line in map(visible, lines):
        typer.echo(typer.style(line, fg=colour) if colour else line, err=err)


def echo_error(message: object) -> None:
    typer.secho(f"rose: {visible_lines(str(message))}", fg=typer.colors.RED, err=True)


@contextmanager
def user_errors(interrupted: str = "stopped") -> Iterator[None]:
    """If the block raises a UserError, or a package of a pip extra is missing, print the error and exit with its code.
    After Ctrl-C, print `interrupted` and exit with 130."""
    try:
        try:
            yield
        except ModuleNotFoundError as error:
            raise not_installed(error) or error from None
    except UserError as error:
        echo_error(error)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        echo(interrupted, err=True)
        raise SystemExit(130) from None


def echo_data(text: str) -> None:
    """Print text for a program: exact in a file or pipe, escaped on a terminal."""
    text = text.removesuffix("\n")
    typer.echo(visible_lines(text) if sys.stdout.isatty() else text, color=True)


def progress(*, err: bool) -> Callable[[str], None]:
    began = time.monotonic()
    return lambda text: typer.echo(
        f"{typer.style(f'{time.monotonic() - began:6.1f} s', dim=True)}  {visible(text)}", err=err
    )


def styled(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style)


class Screen(Console):
    """A rich console that takes text literally, also in tables and titles."""

    def __init__(self, *, width: int | None = None, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(width=width, stderr=stderr, file=file, highlight=False)

    def render_str(self, text: str, *, style: Any = "", justify: Any = None, overflow: Any = None, **_: Any) -> Text:
        return Text(visible(text), style=style, justify=justify, overflow=overflow)
