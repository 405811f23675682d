"""The one base of errors that a user can act on: shown as a message, never as a traceback."""

from __future__ import annotations

from typing import ClassVar


class UserError(Exception):
    """The message names the thing that is wrong, its value, and the way out."""

    #: 2: what was given is wrong. 1: it was right, and something failed. 3: it waits for an approval.
    exit_code: ClassVar[int] = 2
