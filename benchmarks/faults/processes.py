"""What runs on the hosts of the trials: found, struck, and started again as a host's service manager does."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.runtime.service.hosts import Host

_LOOK_S, _RESTART_S = 0.2, 2.0
_ENTER = "nsenter"


class Service:
    """A program that a host's service manager starts again whenever it ends."""

    def __init__(self, host: Host, name: str, *arguments: str, heard: Callable[[str], None] | None = None) -> None:
        self.host, self.name, self._arguments, self._heard = host, name, arguments, heard
        self.environment: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process: subprocess.Popen[str] | None = None
        #: How it ended, each time.
        self.codes: list[int] = []

    def start(self) -> Service:
        self._thread.start()
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> None:
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                # What enters the host's namespaces waits for the program itself.
                programs = psutil.Process(process.pid).children() or [psutil.Process(process.pid)]
                kill(programs, number)
                _, left = psutil.wait_procs(programs, timeout_s)
                kill(left, signal.SIGKILL)
            process.wait()
        self._thread.join()

    def _run(self) -> None:
        log = self.host.disk / f"{self.name}.log"
        while not self._stopping.is_set():
            if not self.host.up:
                self._stopping.wait(_LOOK_S)
                continue
            with log.open("a") as file:
                output: Any = file if self._heard is None else subprocess.PIPE
                self._process = self.host.start(*self._arguments, output=output, **self.environment)
                if self._process.stdout is not None:
                    assert self._heard is not None
                    for line in self._process.stdout:
                        self._heard(line)
                self.codes.append(self._process.wait())
            self._stopping.wait(_RESTART_S)


def kill(processes: Sequence[psutil.Process], number: signal.Signals) -> bool:
    """Whether there was one to send the signal to."""
    sent = False
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            sent = True
            # What entered the host's namespaces for a program stops when that does, and does not go on with it.
            if number is signal.SIGCONT and (parent := process.parent()) is not None and name_of(parent) == _ENTER:
                parent.send_signal(number)
    return sent


def processes_of(host: Host) -> list[psutil.Process]:
    """What runs on a host, whoever started it; nothing on one without power."""
    found: list[psutil.Process] = []
    try:
        there = _space(host.first_pid)
    except OSError:
        return found
    for process in psutil.process_iter():
        with suppress(OSError):
            if _space(process.pid) == there:
                found.append(process)
    return found


def _space(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


def number_inside(process: psutil.Process) -> int:
    """A process's number among those of its host."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def name_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""


def title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
