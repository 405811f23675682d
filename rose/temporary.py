"""Temporary folders that do not outlive their process for good, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

#: A folder is locked by then, or its process was killed.
_LOCKED_S = 10


class TemporaryFolder:
    """A folder for this process, until `close`. What killed processes of this user left under its `prefix` is removed.

    It lies in `home`, by default where temporary files do. A context manager, which gives its path.
    """

    def __init__(self, prefix: str, home: Path | None = None) -> None:
        home = home or Path(tempfile.gettempdir())
        for leftover in home.glob(f"{prefix}*"):
            with suppress(OSError):
                _remove_unlocked(leftover)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        # The kernel lets go of it when the process ends.
        self._descriptor = _opened(self.path)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder of this user that no process has. Raises OSError."""
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or time.time() - status.st_mtime < _LOCKED_S:
        return
    descriptor = _opened(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
