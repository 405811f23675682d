"""What can go wrong between a trainer and the controller. Each message says what to do."""

from __future__ import annotations

from typing import ClassVar

from rose.errors import UserError


class ClientError(UserError):
    """The base of this package's errors: something that was given is wrong, or the controller refused it."""


class ControllerAwayError(ClientError):
    """The controller did not answer, or not do what it was asked, for as long as the run was to wait for it."""

    exit_code: ClassVar[int] = 1


class RunTakenError(ClientError):
    """A newer client resumed the run: this one may neither publish nor record for it any more."""

    exit_code: ClassVar[int] = 1


class RunEndedError(ClientError):
    """The controller has no such run, or it is closed."""

    exit_code: ClassVar[int] = 1


class RunExpiredError(ClientError):
    """The controller did not hear of the run for too long, and nobody took it over: it can be resumed."""

    exit_code: ClassVar[int] = 1
