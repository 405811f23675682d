"""Logs that do not grow without end: a process's own, and those of engines, which write to a file that stays open."""

from __future__ import annotations

import logging
import logging.handlers
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rose.runtime.engines.leftovers import LOGS_KEPT
from rose.runtime.service.places import make_state

#: A log that is longer is moved aside.
LOG_BYTES_MAX = 32 << 20


def log_to(path: Path, bytes_max: int = LOG_BYTES_MAX) -> Callable[[str], None]:
    """What writes lines with their time to a log, of which the last few are kept. Raises FolderError."""
    make_state(path.parent)
    logger = logging.getLogger(f"rose.log.{path}")
    if not logger.handlers:
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=bytes_max, backupCount=LOGS_KEPT)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger.info


def rotate(folder: Path, bytes_max: int = LOG_BYTES_MAX) -> list[Path]:
    """Move aside what engines wrote, where it is too long, and return those logs.

    An engine has its log open to append: it is copied and emptied where it lies, and what is written in between is
    lost, which is a line or two. `engine.log` becomes `engine.old.log`, in place of the one before.
    """
    rotated = []
    for log in sorted(folder.glob("*.log")):
        # One that went meanwhile, or a disk without room for a copy: there is another time.
        with suppress(OSError):
            if not log.name.endswith(".old.log") and log.stat().st_size > bytes_max:
                old = log.with_name(f"{log.stem}.old.log")
                try:
                    shutil.copyfile(log, old)
                except OSError:
                    # The end of a log is worth less than the disk that it fills.
                    old.unlink(missing_ok=True)
                with log.open("r+b") as file:
                    file.truncate(0)
                rotated.append(log)
    return rotated
