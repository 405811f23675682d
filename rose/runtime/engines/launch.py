"""Runs SGLang's server with ROSE's plugin. A process that imports this module gets stand-ins for missing packages."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines import adoption, door
from rose.runtime.platform import placement

if os.environ.get("ROSE_ENGINE_ON_CPU") == "1":
    from rose.runtime.platform import cpu

    cpu.install()
else:
    from rose.runtime.platform import gpu

    gpu.install()

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent dies. Exit if the parent is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(f"the process {parent_pid} that started this engine is gone")


def serve(arguments: Sequence[str]) -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from rose.runtime.coserving.plugin import require_hooks

    if (settings := PluginSettings.from_environment()) is not None and settings.role == "rollout":
        placement.go_first_when_memory_runs_out()
    adoption.watch_from_within()
    door.open_from_within()
    load_plugins()
    require_hooks()
    server_args = prepare_server_args(list(arguments))
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def main() -> None:
    if not adoption.is_detached():
        die_with_parent(int(os.environ["ROSE_PARENT_PID"]))
    serve(sys.argv[1:])


if __name__ == "__main__":
    main()
