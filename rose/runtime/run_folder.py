"""A run's folder for arbiter pages and staged weights, and the end of those whose runs were killed.

A run holds a lock on a file in its folder, which the kernel lets go when the run's process ends however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from rose.errors import UserError
from rose.runtime.engines import leftovers

_SHARED_MEMORY = Path("/dev/shm")
_OWNER = "owner"


def path(run_id: str) -> Path:
    """Where the folder of a run is: memory-backed where the host has /dev/shm."""
    return base() / f"rose-{run_id}"


def base() -> Path:
    """Where the folders of all runs are."""
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def claim(folder: Path, logs: Path) -> IO[str]:
    """Make the folder of a run whose engines write to `logs`. It is a live run's until the file returned is closed.

    Raises UserError if there is such a folder.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise UserError(f"{folder} is another run's, of the same name and second: start this one again") from None
    partial = folder / f"{_OWNER}.partial"
    owner = partial.open("w")
    fcntl.flock(owner, fcntl.LOCK_EX)
    owner.write(str(logs))
    owner.flush()
    # Nobody sees it without its lock.
    partial.rename(folder / _OWNER)
    return owner


def remove_orphans(where: Path) -> Iterator[Path]:
    """Remove this user's folders of runs that live no more, with what their engines left, and yield them."""
    for file in sorted(where.glob(f"rose-*/{_OWNER}")):
        # It may end meanwhile, or be another user's.
        with suppress(OSError):
            if file.parent.is_symlink() or file.parent.stat().st_uid != os.getuid():
                continue
            with file.open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftovers.remove_noted(Path(owner.read()))
                shutil.rmtree(file.parent)
            yield file.parent
