"""Text from outside: whoever may write an event, a heartbeat or a file name may write any character into it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

#: Line and paragraph separators; with all categories that begin with C (controls, formats such as those that turn text
#: around, surrogates, private use, unassigned) they are what a screen obeys, hides or draws as it likes.
_SEPARATORS = ("Zl", "Zp")
#: Letters, marks and symbols that leave no ink: fillers, joiners, and variation selectors but that of emoji.
_BLANK = frozenset(
    map(
        chr,
        (
            *(0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
            *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE0F), *range(0xE0100, 0xE01F0)),
        ),
    )
)


class Escapes(dict[int, str]):
    """A table for `str.translate`: escapes for the characters that a screen does not simply show, but those `kept`."""

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
    """Return `text` as one line that a terminal or a page shows and obeys nothing in: `\\n` stands for a line end."""
    return text.translate(_LINE)


def visible_lines(text: str) -> str:
    """Return `text` as `visible` does, but with its line ends and tabs: of text that has lines of our own."""
    return text.translate(_LINES)
