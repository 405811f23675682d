"""A process that runs the methods of one object on request, through a pipe."""

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Literal, Self


class PeerError(RuntimeError):
    """The other process failed, ended, or did not answer in time."""


class Peer:
    """A process with the object `make(pipe_end, *arguments)`. The process ends with this Peer or with its parent."""

    def __init__(
        self,
        name: str,
        make: Callable[..., object],
        *arguments: object,
        start: Literal["spawn", "forkserver"] = "spawn",
    ) -> None:
        self.name = name
        context: Any = multiprocessing.get_context(start)
        if start == "forkserver":
            context.set_forkserver_preload([make.__module__])
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), name=name, daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, method: str, *arguments: object, **named: object) -> None:
        try:
            self.connection.send((method, arguments, named))
        except OSError as error:
            self.hear()  # The reason may still be there to read.
            raise PeerError(f"the process {self.name!r} ended ({error})") from None

    def answers(self, seconds: float) -> bool:
        try:
            return bool(self.connection.poll(seconds))
        except OSError:
            return True

    def hear(self) -> Any:
        try:
            answer, failure = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(1.0)
            raise PeerError(f"the process {self.name!r} ended with exit code {self._process.exitcode}") from None
        if failure is not None:
            raise PeerError(f"the process {self.name!r} failed {failure}")
        return answer

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
    subject, failure = None, None
    try:
        subject = make(connection, *arguments)
    except Exception as error:
        traceback.print_exc()
        failure = f"at its start: {type(error).__name__}: {error}"
    with suppress(EOFError, OSError):
        while True:
            method, positional, named = connection.recv()
            answer, failed = None, failure
            if failed is None:
                try:
                    answer = getattr(subject, method)(*positional, **named)
                except Exception as error:
                    traceback.print_exc()
                    failed = f"at {method!r}: {type(error).__name__}: {error}"
            connection.send((answer, failed))
