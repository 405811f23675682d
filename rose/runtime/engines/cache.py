"""Folders that are made once: built beside their place, then moved there whole."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def once(cache: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The folder `cache`/`name`, made by `build` (given an empty folder to fill) if it is not there yet.

    Of several processes one builds and the others wait. A killed build leaves a folder `.<name>.*` that the next one
    removes; the folder under its own name is always whole.
    """
    cache = cache.expanduser()
    folder = cache / name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{name}.lock").open("w") as lock:
        # The kernel drops the lock when its holder dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        for leftover in cache.glob(f".{name}.building-*"):
            shutil.rmtree(leftover)
        building = Path(tempfile.mkdtemp(prefix=f".{name}.building-", dir=cache))
        try:
            build(building)
            building.chmod(0o755)
            building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return folder
