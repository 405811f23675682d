"""The one error of weight transfer."""

from __future__ import annotations


class TransferError(Exception):
    """A version could not be published, fetched, staged or applied; nothing of the engine was changed.

    The message names the tensor or the package, what was expected, what was found, and what to do.
    """
