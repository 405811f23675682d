"""The base of errors that a user can act on: shown as a message, without a traceback."""

import difflib
from collections.abc import Collection
from typing import ClassVar

_NAMES_MAX = 12


class UserError(Exception):
    """The message names what is wrong, its value, and the way out."""

    exit_code: ClassVar[int] = 2  # 2: wrong input. 1: right input, and something failed.


def did_you_mean(value: str, known: Collection[str]) -> str:
    """Return the end of a message on an unknown value: the nearest name, else all known names."""
    if near := difflib.get_close_matches(value, known, n=1):
        return f"; did you mean {near[0]!r}?"
    names = sorted(known)
    more = " ..." if len(names) > _NAMES_MAX else ""
    return f"; there is {', '.join(names[:_NAMES_MAX]) or 'none'}{more}"
