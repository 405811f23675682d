"""A demo in a terminal: progress lines with their time, Ctrl-C once to stop cleanly."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from rose.config import FleetConfig
from rose.runtime.service.demo import Outcome, run
from rose.terminal import progress


def run_in_console(config: FleetConfig, seconds_max: float | None = None) -> Outcome:
    """Run the demo, saying what it does. Raises what `demo.run` raises."""
    say, stopping = progress(err=False), threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        say("stopping: the step in progress is given up, everything recorded is kept")
        stopping.set()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        outcome = run(config, say, stopping, seconds_max)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    say(f"stopped after {outcome.steps} steps" if outcome.stopped else "done")
    return outcome
