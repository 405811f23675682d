"""Errors that a part of a fleet raises."""

from typing import ClassVar

from rose.errors import UserError


class DeploymentError(UserError):
    """A part of the fleet failed. The message names the part and the file of its log."""

    exit_code: ClassVar[int] = 1


class FolderError(UserError, OSError):
    """A folder named in the fleet file cannot be made or used."""


class PartDiedError(Exception):
    """The Ray actor of a part has ended and will not come back."""
