"""Code that the processes of a fleet share: plans, reports, logs, and a watch that ends them with the Ray node."""

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
from rose.runtime.places import make_state

LOG_BYTES_MAX = 32 << 20
STOPPING = "is stopping"  # Report of a part that ends.
_NODE = "RAY_RAYLET_PID"  # Ray's variable with the pid of the node's process.
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The state of a part. `doing` tells why the part is not ready; empty means ready."""

    doing: str
    pid: int | None = None
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        return not self.doing


def dump(plan: object) -> str:
    """Return a plan, with its secrets, as JSON. An actor that restarts with another ROSE version can read this JSON."""
    return TypeAdapter(type(plan)).dump_json(plan).decode()


def load(kind: type[_T], plan: _T | str) -> _T:
    return TypeAdapter(kind).validate_json(plan) if isinstance(plan, str) else plan


def log_to(path: Path, bytes_max: int = LOG_BYTES_MAX) -> Callable[[str], None]:
    """Return a function that writes lines, each with its time, to a rotated log. Raises FolderError."""
    make_state(path.parent)
    logger = logging.getLogger(f"rose.log.{path}")
    if not logger.handlers:
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=bytes_max, backupCount=LOGS_KEPT)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger.info


def rotate(folder: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Copy each long log to `NAME.old.log` and truncate the log, because engines keep it open."""
    for log in sorted(folder.glob("*.log")):
        with suppress(OSError):
            if not log.name.endswith(".old.log") and log.stat().st_size > bytes_max:
                old = log.with_name(f"{log.stem}.old.log")
                try:
                    shutil.copyfile(log, old)
                except OSError:
                    old.unlink(missing_ok=True)
                with log.open("r+b") as file:
                    file.truncate(0)


def start(name: str, body: Callable[[], object], log: Path) -> threading.Thread:
    """Run `body` in a thread. After an error the process ends, so that Ray restarts it."""

    def run() -> None:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            with suppress(Exception):
                log_to(log)(f"this process ends after an unexpected error:\n{traceback.format_exc()}")
            os._exit(1)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def start_part(name: str, body: Callable[[], object], log: Path) -> threading.Thread:
    """Call `start`. Also end this process when its Ray node ends; Ray's own check fails if the clock is changed."""
    if _NODE in os.environ:
        start("node", lambda: _end_with(int(os.environ[_NODE]), log), log)
    return start(name, body, log)


def _end_with(pid: int, log: Path) -> None:
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    with suppress(Exception):
        log_to(log)("this process ends with its Ray node")
    os._exit(1)
