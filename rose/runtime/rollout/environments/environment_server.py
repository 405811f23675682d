"""A program that loads one environment and forks a child for each connection. Its first line on stdout has the
environment's traits or an `error`. Each call and answer is a line of JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib.util
import json
import os
import random
import resource
import signal
import socketserver
import sys
from pathlib import Path
from typing import Any

LOAD_S_MAX = 600.0  #: Packages may download their data.
ERROR_LENGTH_MAX = 500


def main(socket: str, settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Packages print while they are imported.
    # Forking a process without threads is safe.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    faulthandler.dump_traceback_later(LOAD_S_MAX, exit=True)
    try:
        from rose.runtime.rollout.environments.protocol import Traits, load

        make = load(settings["environment"], settings["options"])
        traits = dataclasses.asdict(Traits.of(make(), settings["environment"]))
    except Exception as error:
        answers.write(json.dumps({"error": _text(error), "user": hasattr(error, "exit_code")}))
        sys.exit(1)
    faulthandler.cancel_dump_traceback_later()
    with EnvironmentServer(socket, make, settings) as server:
        answers.write(json.dumps(traits))
        answers.close()
        server.serve_forever()


class EnvironmentServer(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 4096

    def __init__(self, socket: str, make: Any, settings: dict[str, Any]) -> None:
        self.make, self.settings, self._parent = make, settings, os.getppid()
        super().__init__(socket, Handler)

    def service_actions(self) -> None:
        super().service_actions()
        if os.getppid() != self._parent:
            sys.exit(1)

    def server_close(self) -> None:
        for child in self.active_children or ():
            self._end(child)
        super().server_close()

    def collect_children(self, *, blocking: bool = False) -> None:
        with contextlib.suppress(ChildProcessError):
            # WNOWAIT keeps the ids of the child and its group from reuse.
            while child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._end(child.si_pid)
                os.waitpid(child.si_pid, 0)
                (self.active_children or set()).discard(child.si_pid)

    def _end(self, child: int) -> None:
        for end in (os.killpg, os.kill):  # A new child has no group yet.
            with contextlib.suppress(ProcessLookupError):
                end(child, signal.SIGKILL)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection. The process of its trajectory ends anyway."""


class Handler(socketserver.StreamRequestHandler):
    server: EnvironmentServer

    def handle(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silent, stream)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory = pages * resource.getpagesize() + self.server.settings["memory_mb_max"] * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        environment = None
        for line in self.rfile:
            # The watchdog needs neither signals nor the interpreter's lock.
            faulthandler.dump_traceback_later(self.server.settings["call_s_max"], exit=True, file=2)
            try:
                environment = environment or self.server.make()
                answer = call(environment, **json.loads(line))
                text = json.dumps(answer)
            except Exception as error:
                text = json.dumps({"error": _text(error)})
            faulthandler.cancel_dump_traceback_later()
            self.wfile.write(text.encode() + b"\n")


def call(environment: Any, method: str, argument: Any) -> dict[str, Any]:
    if method == "reset":
        random.seed(argument)  # Forked children would draw one sequence.
        return {"observation": environment.reset(argument)}
    if method == "recheck":
        return {"correct": bool(environment.recheck())}
    observation, reward, done, info = environment.step(argument)
    return {"observation": observation, "reward": float(reward), "done": bool(done), "info": dict(info)}


def _text(error: Exception) -> str:
    return f"{error}" if hasattr(error, "exit_code") else f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]


def find_rose() -> None:
    """Make only `rose` importable from the folder that contains it, not the other packages there."""
    folder = Path(__file__).resolve().parents[3]
    places = [str(folder)]
    spec = importlib.util.spec_from_file_location("rose", folder / "__init__.py", submodule_search_locations=places)
    assert spec is not None
    sys.modules["rose"] = importlib.util.module_from_spec(spec)


if __name__ == "__main__":
    find_rose()
    main(sys.argv[1], json.loads(sys.argv[2]))
