"""The one base of errors that a user can act on: shown as a message, never as a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import ClassVar

#: Names that a message lists where none is near.
_NAMES_MAX = 12


class UserError(Exception):
    """The message names the thing that is wrong, its value, and the way out."""

    #: 2: what was given is wrong. 1: it was right, and something failed.
    exit_code: ClassVar[int] = 2


def did_you_mean(value: str, known: Collection[str]) -> str:
    """The end of a message on a value that is not known: the name next to it, else those there are."""
    if near := difflib.get_close_matches(value, known, n=1):
        return f"; did you mean {near[0]!r}?"
    names = sorted(known)
    more = " ..." if len(names) > _NAMES_MAX else ""
    return f"; there is {', '.join(names[:_NAMES_MAX]) or 'none'}{more}"
