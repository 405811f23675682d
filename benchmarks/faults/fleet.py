"""A deployment started as a user would, with `rose demo`, and where its processes are."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.faults.plan import Victim
from rose.errors import UserError
from rose.runtime import run_folder
from rose.runtime.coserving.page import ArbiterPage, Field, Party

DEVICE = "serving-0"
#: The lent engine's name in the ledger.
ENGINE = f"{DEVICE}-rollout"
_STEPS = 1_000_000
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 90.0
_LOOK_S = 0.2
_SERVING_LINE = re.compile(rf"serving on {DEVICE} will answer at (\S+)")
_GATEWAY_LINE = re.compile(r"rollout gateway at (\S+)")
#: Titles that Ray gives the processes of actors; what they are doing may follow.
_TITLES = {Victim.GATEWAY: "ray::GatewayActor", Victim.WORKER: "ray::RolloutActor"}


class FleetError(UserError):
    """The deployment did not start, or ended before it was to."""


class Fleet:
    """`rose demo` in a process of its own, with no traffic but ours. Use it as a context: it is stopped at the end.

    Raises FleetError with the last lines of its output.
    """

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._page: ArbiterPage | None = None
        self._serving_url = self._gateway_url = ""

    def __enter__(self) -> Fleet:
        rose = Path(sys.executable).with_name("rose")
        command = [str(rose), "demo", "--ledger", str(self.ledger), "--trace", "none", "--steps", str(_STEPS)]
        # In a session of its own, so that Ctrl-C reaches this process first.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, name="deployment's output", daemon=True).start()
        try:
            self._serving_url = self._await_line(_SERVING_LINE)
            self._gateway_url = self._await_line(_GATEWAY_LINE)
            self._await_page()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def serving_url(self) -> str:
        return self._serving_url

    @property
    def gateway_url(self) -> str:
        return self._gateway_url

    @property
    def page(self) -> ArbiterPage:
        assert self._page is not None, "it was started"
        return self._page

    @property
    def run_id(self) -> str:
        (folder,) = (self.ledger / "logs").iterdir()
        return folder.name

    def check(self) -> None:
        """Raises FleetError if the deployment has ended."""
        assert self._process is not None, "it was started"
        if self._process.poll() is not None:
            raise FleetError(f"the deployment ended, exit code {self._process.returncode}:\n{self._tail()}")

    def find(self, victim: Victim) -> psutil.Process | None:
        """The process that is this part now; None while it is being started again."""
        try:
            if victim is Victim.AGENT:
                return self._party(Party.AGENT)
            if victim is Victim.SCHEDULER:
                return self._party(Party.ROLLOUT)
            if victim is Victim.SERVER:
                scheduler = self._party(Party.ROLLOUT)
                return None if scheduler is None else scheduler.parent()
            # The first by number of those there are: workers are alike.
            named = [process for process in self._descendants() if _title(process).startswith(_TITLES[victim])]
            return min(named, key=lambda process: process.pid, default=None)
        except psutil.NoSuchProcess:
            return None

    def serving(self) -> psutil.Process | None:
        """The scheduler of the serving engine."""
        return self._party(Party.SERVING)

    def stop(self) -> None:
        """End the deployment as Ctrl-C would, and what is left of it not so politely. Safe to call twice."""
        process = self._process
        if process is None:
            return
        self._process = None
        processes = _family(process.pid)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
        for left in processes:
            with suppress(psutil.NoSuchProcess):
                left.kill()
        process.kill()
        process.wait()
        if self._page is not None:
            self._page.close()

    # ------------------------------------------------------------------ looking

    def _party(self, party: Party) -> psutil.Process | None:
        if not self.page.alive(party):
            return None
        try:
            return psutil.Process(self.page.get(party, Field.PID))
        except (psutil.NoSuchProcess, ValueError):
            return None

    def _descendants(self) -> list[psutil.Process]:
        assert self._process is not None, "it was started"
        return _family(self._process.pid)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    def _tail(self) -> str:
        return "\n".join(self.lines[-15:])

    def _await_line(self, pattern: re.Pattern[str]) -> str:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if (found := pattern.search(line)) is not None:
                    return found.group(1)
            self.check()
            time.sleep(_LOOK_S)
        raise FleetError(f"the deployment did not say {pattern.pattern!r} in {_START_TIMEOUT_S:.0f} s:\n{self._tail()}")

    def _await_page(self) -> None:
        path = run_folder.path(self.run_id) / DEVICE / "page"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            self.check()
            if self._page is None and path.exists():
                self._page = ArbiterPage(path)
            if self._page is not None and all(map(self._page.alive, (Party.AGENT, Party.SERVING, Party.ROLLOUT))):
                return
            time.sleep(_LOOK_S)
        raise FleetError(f"the engines of {DEVICE} did not come to their page:\n{self._tail()}")


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
