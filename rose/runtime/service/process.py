"""What each process of a fleet's parts has: its plan and its report as JSON, its log, and its end with its Ray node."""

from __future__ import annotations

import logging
import logging.handlers
import os
import select
import shutil
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from rose.runtime.engines.leftovers import LOGS_KEPT
from rose.runtime.service.places import make_state

#: A log that is longer is moved aside.
LOG_BYTES_MAX = 32 << 20
#: What a part is at whose work ends; its process is there for as long as nobody ends it.
STOPPING = "is stopping"
#: Names, to what Ray starts, the process of its node.
_NODE = "RAY_RAYLET_PID"
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """How a part of the fleet is. `doing`: what it is at, or why it is not ready; nothing if it is at work."""

    doing: str
    pid: int | None = None
    #: Of each device that is not well, why.
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return not self.doing


def dump(plan: object) -> str:
    """Return a plan as JSON, with the secrets that are in it. Ray keeps what a part was told and gives it to each
    process that it starts again, whatever program is installed there by then."""
    return TypeAdapter(type(plan)).dump_json(plan).decode()


def load(kind: type[_T], plan: _T | str) -> _T:
    """Return what `dump` wrote, by this version or another: a field that it lacks has its default. Raises
    ValidationError."""
    return TypeAdapter(kind).validate_json(plan) if isinstance(plan, str) else plan


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


def start(name: str, body: Callable[[], object], log: Path) -> threading.Thread:
    """Run `body` in a thread. An exception that it lets out ends the process, and is in `log` with its traceback: a
    process that answers and does nothing is started anew by nobody."""

    def run() -> None:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            with suppress(Exception):
                log_to(log)(f"this process ends by what nobody foresaw:\n{traceback.format_exc()}")
            os._exit(1)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def start_part(name: str, body: Callable[[], object], log: Path) -> threading.Thread:
    """As `start`, what a process that is a part of the fleet is for. The process also ends, as if it was killed, once
    the Ray node that it is on has ended.

    Ray sees to that by the wall clock alone: where that was set back, not before it has caught up. Nobody would reach
    the process until then, and the next one would wait for what it holds.
    """
    if _NODE in os.environ:
        start("node", lambda: _end_with(int(os.environ[_NODE]), log), log)
    return start(name, body, log)


def _end_with(pid: int, log: Path) -> None:
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    with suppress(Exception):
        log_to(log)("its Ray node has ended, and this process ends with it")
    os._exit(1)
