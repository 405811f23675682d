"""Programs in processes of their own, forked from a server that has the ledger and controller loaded."""

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TextIO, TypeVar

from rose.ledger.files import catalog
from rose.ledger.growth import archive, rollup
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling.gateway import Gateway

#: What the server has loaded when it forks.
LOADED = (archive, rollup, LedgerWriter, Gateway)
catalog._template()

T = TypeVar("T")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])


@contextmanager
def started(code: str, *arguments: object) -> Iterator[tuple[BaseProcess, TextIO]]:
    """Run Python code and yield its process and output. It is killed if the caller fails."""
    receiving, sending = _SERVER.Pipe(duplex=False)
    call = (code, [str(argument) for argument in arguments], sending, dict(os.environ))
    process = _SERVER.Process(target=_execute, args=call)
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
    """Return the exit code of Python code (-9 after SIGKILL), and its output."""
    with started(code, *arguments) as (process, output):
        text = output.read()
    return process.exitcode, text


class Server(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@contextmanager
def in_thread(make: Callable[[], Server]) -> Iterator[asyncio.AbstractEventLoop]:
    """Run a server in the event loop of a thread, which is yielded."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def begin() -> Server:
        server = make()
        await server.start()
        return server

    try:
        server = wait(begin())
        yield loop
        wait(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _execute(code: str, arguments: list[str], output: Connection, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    output.close()
    sys.argv = ["-c", *arguments]
    sys.stdout = os.fdopen(1, "w", closefd=False)
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
