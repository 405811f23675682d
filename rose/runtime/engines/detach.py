"""Starts a program as a process that is nobody's child and has a session of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

#: Says the number of the process that goes on; its own output goes where its errors go.
_SCRIPT = """
import os, sys
pid = os.fork()
if pid:
    print(pid, flush=True)
    os._exit(0)
os.setsid()
os.dup2(2, 1)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def start_detached(arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> int:
    """Run this Python with `arguments`; returns the process id. Neither the end of this process nor that of the thread
    that called it ends the program. Raises OSError if it cannot be started."""
    started = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        env=dict(environment),
        start_new_session=True,
        check=False,
    )
    if started.returncode != 0:
        raise OSError(f"{sys.executable} ended with exit code {started.returncode}; see {log.name}")
    return int(started.stdout)
