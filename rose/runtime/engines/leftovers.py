"""What an engine leaves behind: its log, of which the last few are kept, and shared memory, which is removed.

SGLang gives its schedulers' segments in /dev/shm no end of their own: one that is killed leaves all of them, and one
that is stopped leaves its load file. Who kills a process group also kills what would remove its semaphores.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

#: Logs of the engines before the one that writes now.
LOGS_KEPT = 4
_SHARED_MEMORY = Path("/dev/shm")
#: Its creator has the first kind open for as long as it lives; the second is named after its creator's pid.
_LOADS = re.compile(r"sglang_loads_\w+\.shm")
_NAMED = re.compile(r"sgl_shm_[a-z]+_(\d+)_\w+")
#: Python's, of `multiprocessing`. Whoever uses one has it mapped, by the name that it had while it was made: the file's
#: number tells which one it is.
_SEMAPHORE = re.compile(r"sem\.mp-\w+")
_MAPPED = re.compile(rf" (\d+) +{_SHARED_MEMORY}/sem\.\w")
#: What is younger may be on its way from one process to another, and nobody's for a moment.
UNUSED_AFTER_S = 600.0


def shift_logs(log: Path) -> None:
    """Make room for a new log: `engine.log` becomes `engine.1.log`, that `engine.2.log`, and the oldest goes."""
    names = [log, *(log.with_name(f"{log.stem}.{number}{log.suffix}") for number in range(1, LOGS_KEPT + 1))]
    for newer, older in reversed(list(pairwise(names))):
        with suppress(FileNotFoundError):
            newer.replace(older)


class Segments:
    """The shared memory of the engines that write to one log, one after another.

    It is remembered beside the log: an engine whose starter was killed with it leaves it to the next one to remove.
    """

    def __init__(self, log: Path) -> None:
        self._path = log.with_name(f".{log.stem}.segments")
        self._made: set[Path] = set()

    def note(self, group: int) -> None:
        """See what the engine's process group has made so far: once it was killed it cannot be asked."""
        made = self._made | segments(group)
        if made != self._made:
            self._made = made
            # A disk that is full keeps no engine from being ended.
            with suppress(OSError):
                self._path.write_text("\n".join(sorted(path.name for path in made)))

    def remove(self) -> None:
        """Remove what was noted, here or by whoever started the engine before. Call it when the engine has ended."""
        names = {path.name for path in self._made}
        with suppress(OSError):
            names.update(self._path.read_text().splitlines())
            self._path.unlink()
        for name in names:
            if _LOADS.fullmatch(name) or _NAMED.fullmatch(name):
                _remove(name)
        semaphores = {name for name in names if _SEMAPHORE.fullmatch(name)}
        # One that was forked shares those of the process that it was forked from.
        for name in semaphores - _mapped_by_any() if semaphores else ():
            _remove(name)
        self._made = set()


def remove_unused() -> int:
    """Remove this user's segments and semaphores that no process has, whoever left them; returns how many there were.

    For those of runs that nobody noted: of tests, of SGLang without ROSE.
    """
    removed = 0
    for path in sorted(_SHARED_MEMORY.iterdir()):
        creator = _creator(path.name)
        known = _LOADS.fullmatch(path.name) or _SEMAPHORE.fullmatch(path.name) or creator is not None
        if known and not (creator and Path("/proc", creator).exists()) and is_unused(path):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def is_unused(path: Path) -> bool:
    """Whether no process on this host, in whichever container, has a file of this user's open or mapped.

    The kernel tells by granting a lease on it: only to who has it alone. False of a file that may be in use, that is
    young, or that is no regular file of this user's.
    """
    with suppress(OSError):
        status = path.lstat()
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
        if not ours or time.time() - max(status.st_mtime, status.st_atime) < UNUSED_AFTER_S:
            return False
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # Whoever opens it now waits until it is closed here; the usual signal of that would end this process.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            return True
        finally:
            os.close(descriptor)
    return False


def segments(group: int) -> set[Path]:
    """The segments in /dev/shm that the living processes of a process group made, and the semaphores they use."""
    made: set[Path] = set()
    for process in Path("/proc").iterdir():
        # Processes end meanwhile, and some are not ours to look into.
        with suppress(OSError):
            if process.name.isdecimal() and os.getpgid(int(process.name)) == group:
                made |= _made_by(process)
    return made


def _remove(name: str) -> None:
    # Another user may have made a file of such a name.
    with suppress(PermissionError):
        (_SHARED_MEMORY / name).unlink(missing_ok=True)


def _made_by(process: Path) -> set[Path]:
    made = {path for path in _SHARED_MEMORY.iterdir() if _creator(path.name) == process.name}
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):
            path = descriptor.readlink()
            if path.parent == _SHARED_MEMORY and _LOADS.fullmatch(path.name):
                made.add(path)
    with suppress(OSError):
        made |= {_SHARED_MEMORY / name for name in _mapped_by(process)}
    return made


def _mapped_by(process: Path) -> set[str]:
    """The names of the semaphores that a process has mapped."""
    inodes = {int(inode) for inode in _MAPPED.findall((process / "maps").read_text())}
    if not inodes:
        return set()
    return {entry.name for entry in os.scandir(_SHARED_MEMORY) if entry.inode() in inodes}


def _mapped_by_any() -> set[str]:
    mapped: set[str] = set()
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal():
                mapped |= _mapped_by(process)
    return mapped


def _creator(name: str) -> str | None:
    match = _NAMED.fullmatch(name)
    return None if match is None else match[1]
