"""Errors of a fleet's parts."""

from typing import ClassVar

from rose.errors import UserError


class DeploymentError(UserError):
    """A part of the fleet failed; the message names it and its log."""

    exit_code: ClassVar[int] = 1


class FolderError(UserError, OSError):
    """A folder of the fleet file cannot be made or used."""


class PartDiedError(Exception):
    """The actor is gone for good."""
