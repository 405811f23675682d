"""The error of weight transfer; `origin` has the kinds of it that an origin's answer can be."""

from __future__ import annotations

from typing import ClassVar

from rose.errors import UserError


class TransferError(UserError):
    """A version could not be published, fetched, staged or applied; nothing of the engine was changed.

    The message names the tensor or the package, what was expected, what was found, and what to do.
    """

    exit_code: ClassVar[int] = 1
