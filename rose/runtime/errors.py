"""What can go wrong with the parts of a fleet."""

from __future__ import annotations

from typing import ClassVar

from rose.errors import UserError


class DeploymentError(UserError):
    """A part of the fleet failed; the message says which and what its log says."""

    exit_code: ClassVar[int] = 1


class FolderError(UserError, OSError):
    """A folder that the fleet file names cannot be made, or not be used."""


class PartDiedError(Exception):
    """The actor is gone for good."""
