"""`python -m benchmarks.transfer.child CORES FOLDER...`: serves stores."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rose.accept.report import ROOT


def main() -> None:
    cores, *folders = sys.argv[1:]
    os.sched_setaffinity(0, json.loads(cores))
    from rose.transfer.store.store import VersionStore
    from rose.transfer.wire.server import StoreServer

    with ExitStack() as stack:
        servers = [stack.enter_context(StoreServer(VersionStore(Path(folder)))) for folder in folders]
        print(json.dumps([server.url for server in servers]), flush=True)
        sys.stdin.read()


@contextmanager
def served(*folders: Path) -> Iterator[list[str]]:
    """Yield the URLs of these stores in another process."""
    cores = json.dumps(sorted(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", "benchmarks.transfer.child", cores, *map(str, folders)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            urls = process.stdout.readline()
            if not urls:
                raise RuntimeError("the server did not start; its errors above say why")
            yield json.loads(urls)
        finally:
            process.stdin.close()  # The server ends with its input, so it cannot outlive this process.


if __name__ == "__main__":
    main()
