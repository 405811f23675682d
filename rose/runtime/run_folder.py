"""A run's folder for arbiter pages and staged weights, and the end of those whose runs were killed.

A run holds a lock on a file in its folder, which the kernel lets go when the run's process ends however it ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from rose.errors import UserError
from rose.runtime.engines import leftovers

_SHARED_MEMORY = Path("/dev/shm")
_OWNER = "owner"
#: A run's folder, by the name of its run, whether it carries a lock or is of a version that knew none.
_NAME = re.compile(r"rose-.+-\d{8}T\d{6}Z")


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
                remove(file.parent)
            yield file.parent
    for folder in sorted(where.glob("rose-*")):
        with suppress(OSError):
            if _NAME.fullmatch(folder.name) and _is_unused(folder):
                shutil.rmtree(folder)
                yield folder


def remove(folder: Path) -> None:
    """Remove the folder of a run that has ended: its lock last, so that one who is killed here leaves it in place.

    Raises OSError if something of it cannot be removed.
    """
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _OWNER:
            entry.unlink()
    shutil.rmtree(folder)


def _is_unused(folder: Path) -> bool:
    """Whether a folder without a lock is this user's, was made a while ago, and holds no file that a process has."""
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or (folder / _OWNER).exists():
        return False
    files = [path for path in folder.rglob("*") if path.is_file()]
    settled = time.time() - status.st_mtime > leftovers.UNUSED_AFTER_S
    return settled and all(leftovers.is_unused(path) for path in files)
