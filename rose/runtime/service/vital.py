"""Threads that a process of the fleet is nothing without."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rose.runtime.service.logs import log_to


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
