"""Secrets and the files that hold them: long enough, whole or not there, and for their user alone."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rose.errors import UserError

logger = logging.getLogger(__name__)

#: A shorter token could be guessed.
TOKEN_CHARACTERS_MIN = 16
_DIFFERENT_MIN = 6
#: What a mode gives to group and others.
_OTHERS = 0o077


class SecretError(UserError, ValueError):
    """A secret cannot be used as it is; the message says why without showing it."""


def check_token(token: str, name: str = "the token") -> str:
    """Return `token`. Raises SecretError if it could be guessed; `name` says which one it is."""
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise SecretError(
            f"{name} has {len(token)} characters and needs {TOKEN_CHARACTERS_MIN}; `openssl rand -hex 32` makes one"
        )
    if len(set(token)) < _DIFFERENT_MIN or any(char.isspace() for char in token):
        raise SecretError(
            f"{name} holds blanks, or fewer than {_DIFFERENT_MIN} different characters; "
            "`openssl rand -hex 32` makes one"
        )
    return token


def write(path: Path, text: str) -> None:
    """Put `text` at `path`, in place of what was there, and on the disk. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def create(path: Path) -> None:
    """Make an empty file for this user alone; take others' rights from one that exists. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder for this user alone; take others' rights from one that exists. Raises OSError, also for a folder of
    another user."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {status.st_uid}: name a folder of this user, or `chown` it")
    if status.st_mode & _OTHERS:
        path.chmod(0o700)
        logger.warning("%s was open to other users (mode %04o); now it is not", path, status.st_mode & 0o777)


def open_to_others(path: Path) -> str | None:
    """Say that group or others may use the file at `path`, and the way out; None if they may not. Raises OSError."""
    mode = path.stat().st_mode
    if not mode & _OTHERS:
        return None
    return f"has mode {mode & 0o777:04o}, so that others may use it; `chmod 600 {path}`"
