"""`python -m rose.accept.coserve.bare ...`: the serving engine as `rose.runtime.engines.launch` starts it, but without
ROSE's plugin: what a server costs before ROSE is installed beside it."""

from __future__ import annotations

import os
import sys

if os.environ.get("ROSE_ENGINE_ON_CPU") == "1":
    from rose.runtime.engines import cpu

    # Here, not in `main()`: the processes that SGLang spawns import this module again.
    cpu.install()
else:
    from rose.runtime.engines import gpu

    gpu.install()


def main() -> None:
    """Run the server until it is told to stop."""
    from rose.runtime.engines.launch import die_with_parent

    die_with_parent(int(os.environ["ROSE_PARENT_PID"]))
    # As engines of ROSE start: on the whole host, until they are put in their place.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
