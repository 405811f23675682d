"""Secrets and private files."""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from rose.errors import UserError

STATE = Path("~/.local/state/rose")
TOKEN_CHARACTERS_MIN = 16
_DIFFERENT_MIN = 6
_REMEDY = "make it with `openssl rand -hex 32`"


class SecretError(UserError, ValueError):
    """A secret cannot be used. The message does not show it."""


def check_token(token: str, name: str = "the token") -> str:
    """Return `token`. Raises SecretError if it is easy to guess. The message uses `name` for the token."""
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise SecretError(f"{name} has {len(token)} characters and needs {TOKEN_CHARACTERS_MIN}: {_REMEDY}")
    if len(set(token)) < _DIFFERENT_MIN or any(char.isspace() for char in token):
        raise SecretError(f"{name} has blanks, or fewer than {_DIFFERENT_MIN} different characters: {_REMEDY}")
    return token


def write(path: Path, text: str) -> None:
    """Replace a private file and sync it to disk. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def create(path: Path) -> None:
    """Make an empty private file, or make an existing file private. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)


def open_to_others(path: Path) -> str | None:
    """Return None for a private file, else a text about the file's mode and what to do. Raises OSError."""
    mode = path.stat().st_mode
    if not mode & 0o077:
        return None
    return f"has mode {mode & 0o777:04o}, so that others may use it: type `chmod 600 {path}`"


class NotPrivateError(OSError):
    """The folder or file is a link, or another user owns it or may use it."""


def make(path: Path) -> Path:
    """Create a private folder, or make an existing folder private. Raises OSError, or NotPrivateError if another user
    owns the folder or can write to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY, closed_to_others=0o022)
        os.fchmod(descriptor, 0o700)
        os.close(descriptor)
    return path


def make_linked(link: Path, home: Path, prefix: str) -> Path:
    """Return the private folder that `link` points to. If it is missing or unusable, create a folder in `home` (name:
    `prefix` and random characters), and point `link` to this folder. Raises OSError."""
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
    """Return whether a folder belongs to this user or one of `users`, and lets no other user in."""
    try:
        os.close(_open(folder, os.O_RDONLY | os.O_DIRECTORY, users))
    except OSError:
        return False
    return True


def open_file(path: Path, flags: int = 0, users: Collection[int] = ()) -> int:
    """Open a private file of this user or of `users`. Raises NotPrivateError or OSError."""
    folder = _open(path.parent, os.O_RDONLY | os.O_DIRECTORY, users)
    try:
        return _open(path, os.O_RDWR | flags, users, folder)
    finally:
        os.close(folder)


def _open(
    path: Path, flags: int, users: Collection[int] = (), folder: int | None = None, closed_to_others: int = 0o077
) -> int:
    name = path if folder is None else path.name
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if path.is_symlink():
            raise NotPrivateError(f"{path} is a link: remove it") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    status, fault = os.fstat(descriptor), None
    if status.st_uid != os.geteuid() and status.st_uid not in users:
        fault = f"belongs to user {status.st_uid}, not to user {os.geteuid()}"
    elif status.st_mode & closed_to_others:
        fault = f"has mode {stat.S_IMODE(status.st_mode):04o}: other users may use it"
    elif not stat.S_ISDIR(status.st_mode) and (not stat.S_ISREG(status.st_mode) or status.st_nlink != 1):
        fault = "is not a regular file, or has a second hard link: remove it"
    if fault is not None:
        os.close(descriptor)
        raise NotPrivateError(f"{path} {fault}")
    return descriptor


class TemporaryFolder:
    """A temporary folder that is removed by `close`. Folders that killed processes left behind are removed too."""

    def __init__(self, prefix: str, home: Path | None = None) -> None:
        home = home or Path(tempfile.gettempdir())
        for leftover in home.glob(f"{prefix}*"):
            with suppress(OSError):
                _remove_unlocked(leftover)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove_unlocked(folder: Path) -> None:
    status = folder.lstat()
    # A new folder may not be locked yet.
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or time.time() - status.st_mtime < 10:
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)
