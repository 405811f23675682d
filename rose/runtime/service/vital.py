"""What a process of the fleet is nothing without: its threads, and its Ray node."""

from __future__ import annotations

import os
import select
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rose.runtime.service.logs import log_to

#: Names, to what Ray starts, the process of its node.
_NODE = "RAY_RAYLET_PID"


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
