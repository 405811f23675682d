"""Folders that are made once: built beside their place, then moved there whole."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rose.errors import UserError


class CacheError(UserError):
    """A cache that a folder is to be made in and that cannot be written."""


def once(cache: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The folder `cache`/`name`, made by `build` (given an empty folder to fill) if it is not there yet.

    Of several processes one builds and the others wait. A killed build leaves a folder `.<name>.*` that the next one
    removes; the folder under its own name is always whole. A cache that has it already may be one that nobody can
    write to, as one that hosts share. Raises CacheError if it has to be written to and cannot be.
    """
    cache = cache.expanduser()
    folder = cache / name
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / f".{name}.lock").open("w")
    except OSError as error:
        raise CacheError(
            f"cache {cache} has no {name} and cannot be written ({error.strerror}): set `cache` to a folder you own"
        ) from error
    with lock:
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
