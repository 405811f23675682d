"""Programs in processes of their own that begin with the ledger's and the controller's modules loaded.

They are forked from a server that has loaded them once, so a test can start many; each is a whole process, which a
signal kills like any other.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TextIO

from rose.ledger import catalog
from rose.ledger.growth import archive, rollup
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling.gateway import Gateway

#: What the server has loaded when it forks.
LOADED = (archive, rollup, LedgerWriter, Gateway)
catalog._template()

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])


@contextmanager
def started(code: str, *arguments: object) -> Iterator[tuple[BaseProcess, TextIO]]:
    """Run Python code with these arguments in `sys.argv[1:]`; yields its process and its standard output.

    It is waited for at the end, or killed if the caller fails.
    """
    receiving, sending = _SERVER.Pipe(duplex=False)
    # The server has the environment of the test that started it.
    given = (code, [str(argument) for argument in arguments], sending, dict(os.environ))
    process = _SERVER.Process(target=_execute, args=given)
    process.start()
    sending.close()
    with receiving, os.fdopen(os.dup(receiving.fileno())) as output:
        try:
            yield process, output
        except BaseException:
            process.kill()
            raise
        finally:
            process.join()


def run(code: str, *arguments: object) -> tuple[int | None, str]:
    """Run Python code to its end: its exit code, -9 if SIGKILL ended it, and what it printed."""
    with started(code, *arguments) as (process, output):
        said = output.read()
    return process.exitcode, said


def _execute(code: str, arguments: list[str], output: Connection, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    output.close()
    sys.argv = ["-c", *arguments]
    sys.stdout = os.fdopen(1, "w", closefd=False)
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
