"""A deployment in a terminal: progress lines with their time, Ctrl-C once to stop cleanly."""

from __future__ import annotations

import signal
import time
from types import FrameType

from rich.console import Console

from rose.config import FleetConfig
from rose.runtime.deployment import Deployment, Outcome


def run_in_console(config: FleetConfig) -> Outcome:
    """Run the deployment, saying what it does. Raises what `Deployment.run` raises."""
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}")

    deployment = Deployment(config, say)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        say("stopping: the step in progress is given up, everything recorded is kept")
        deployment.request_stop()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        outcome = deployment.run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    say(f"stopped after {len(outcome.steps)} steps" if outcome.stopped else "done")
    return outcome
