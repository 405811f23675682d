"""The errors of weight transfer. The module `origin` adds one for each way in which a fetch can fail."""

from typing import ClassVar

from rose.errors import UserError


class TransferError(UserError):
    """A version could not be published, fetched, staged or applied. The engine is unchanged."""

    exit_code: ClassVar[int] = 1


class ConflictError(TransferError):
    """A version conflicts with a published one: it is not newer, has other weights, or has another base."""


def of_run(run_id: str) -> str:
    return f"of run {run_id!r}" if run_id else "of no run"
