"""Cleans up after engines: keeps some logs, and removes SGLang's unused shared memory."""

import fcntl
import os
import re
import signal
import stat
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

LOGS_KEPT = 4
_SHARED_MEMORY = Path("/dev/shm")
#: SGLang's load files, its memory segments with the pid of their creator, and the semaphores of `multiprocessing`.
_KNOWN = re.compile(r"sglang_loads_\w+\.shm|sgl_shm_[a-z]+_(\d+)_\w+|sem\.mp-\w+")
UNUSED_AFTER_S = 600.0  # A younger file may be on its way from one process to another.


def shift_logs(log: Path) -> None:
    names = [log, *(log.with_name(f"{log.stem}.{number}{log.suffix}") for number in range(1, LOGS_KEPT + 1))]
    for newer, older in reversed(list(pairwise(names))):
        with suppress(FileNotFoundError):
            newer.replace(older)


def remove_unused() -> None:
    for path in sorted(_SHARED_MEMORY.iterdir()):
        match = _KNOWN.fullmatch(path.name)
        if match and not (match[1] and Path("/proc", match[1]).exists()) and is_unused(path):
            path.unlink(missing_ok=True)


def is_unused(path: Path) -> bool:
    """Return whether `path` is an old file of this user and no process has it open. A file lease (fcntl) shows this."""
    with suppress(OSError):
        status = path.lstat()
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
        if not ours or time.time() - max(status.st_mtime, status.st_atime) < UNUSED_AFTER_S:
            return False
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # An opener now waits for the close below; its default signal would end this process.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            return True
        finally:
            os.close(descriptor)
    return False
