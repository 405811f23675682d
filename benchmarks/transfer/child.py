"""`python -m benchmarks.transfer.child WHAT CORES ...`: a part of it in a process of its own, kept to its cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rose.accept.report import ROOT


def main() -> None:
    """Do what the command line names, and print what came of it in a line of JSON."""
    what, cores, *rest = (json.loads(argument) for argument in sys.argv[1:])
    os.sched_setaffinity(0, cores)
    parts: dict[str, Callable[..., None]] = {"speed": _speed, "serve": _serve}
    parts[what](*rest)


def answer(what: str, cores: Sequence[int], *rest: object) -> Any:
    """What a child prints. Raises RuntimeError with its log if it fails."""
    done = subprocess.run(_command(what, cores, *rest), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the {what} part failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


@contextmanager
def served(*folders: Path) -> Iterator[list[str]]:
    """URLs at which a process of its own serves these stores while the block runs."""
    command = _command("serve", sorted(os.sched_getaffinity(0)), *map(str, folders))
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            told = process.stdout.readline()
            if not told:
                raise RuntimeError("the server did not start; what it wrote on stderr says why")
            yield json.loads(told)
        finally:
            process.stdin.close()  # It ends when its input does, so it cannot outlive this process.


def _command(what: str, cores: Sequence[int], *rest: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.transfer.child", *map(json.dumps, (what, cores, *rest))]


def _speed(elements: int, rounds: int) -> None:
    from benchmarks.transfer import codec

    print(json.dumps(codec.rates(elements, rounds)))


def _serve(*folders: str) -> None:
    from contextlib import ExitStack

    from rose.runtime.transfer.store.store import VersionStore
    from rose.runtime.transfer.wire.server import StoreServer

    with ExitStack() as stack:
        servers = [stack.enter_context(StoreServer(VersionStore(Path(folder)))) for folder in folders]
        print(json.dumps([server.url for server in servers]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
