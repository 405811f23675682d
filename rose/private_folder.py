"""Folders and files that no other user of this host can read, write or put in place.

For what lies in /dev/shm and /tmp, where everybody may make a name first. Whoever may write to a file may also truncate
it, and that kills who has it mapped.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


class NotPrivateError(OSError):
    """Another user owns the folder or file, or may use it, or a link is in its place."""


def make(path: Path) -> Path:
    """Make a folder for this user alone, or close one of this user's to others that only read. Raises NotPrivateError,
    OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY, closed_to_others=0o022)
        os.fchmod(descriptor, 0o700)
        os.close(descriptor)
    return path


def make_linked(link: Path, home: Path, prefix: str) -> Path:
    """Return the private folder that `link` leads to, made anew if it is gone.

    `link` lies where this user alone may write, and keeps the name. Nobody can guess a name in `home` that is new: at
    first, and where another user has taken the one before. Raises OSError.
    """
    # Two processes may come at once.
    parent = os.open(link.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)
        if link.is_symlink():
            with suppress(OSError):
                return make(link.readlink())
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        return folder
    finally:
        os.close(parent)


def is_private(folder: Path, users: Collection[int] = ()) -> bool:
    """Whether a folder is there, and this user's or one of `users` alone."""
    try:
        os.close(_enter(folder, users))
    except OSError:
        return False
    return True


def open_file(path: Path, flags: int = 0, users: Collection[int] = ()) -> int:
    """Open a private file in a private folder to read and write; with O_CREAT in `flags` a new one if there is none.

    It may belong to this user or to `users`. Raises NotPrivateError, OSError.
    """
    folder = _enter(path.parent, users)
    try:
        return _open(path, os.O_RDWR | flags, users, folder)
    finally:
        os.close(folder)


def _enter(folder: Path, users: Collection[int]) -> int:
    return _open(folder, os.O_RDONLY | os.O_DIRECTORY, users)


def _open(
    path: Path,
    flags: int,
    users: Collection[int] = (),
    folder: int | None = None,
    closed_to_others: int = 0o077,
) -> int:
    """Open what lies at `path` and check that it is private. `folder` is a descriptor of its folder."""
    name = path if folder is None else path.name
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if path.is_symlink():
            raise NotPrivateError(f"{path} is a link: remove it") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        _check(path, os.fstat(descriptor), users, closed_to_others)
    except NotPrivateError:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: Path, status: os.stat_result, users: Collection[int], closed_to_others: int) -> None:
    if status.st_uid != os.geteuid() and status.st_uid not in users:
        raise NotPrivateError(f"{path} belongs to user {status.st_uid}, and not to user {os.geteuid()}")
    if status.st_mode & closed_to_others:
        raise NotPrivateError(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: other users may use it")
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise NotPrivateError(f"{path} is not one regular file with one name: remove it")
