"""`rose serve-cpu` runs a user's own SGLang server on CPU cores, to try `serving_url` without a GPU."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Annotated

import typer

from rose.runtime.platform import cpu


def serve_cpu_command(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, Hugging Face id, or smollm2-135m-instruct.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Further arguments for SGLang, after `--`.")] = None,
    port: Annotated[int, typer.Option(help="HTTP port on this machine.", min=1, max=65535)] = 30000,
    core: Annotated[list[int] | None, typer.Option(help="CPU core; may be repeated. Default: the first.")] = None,
) -> None:
    """Run your own SGLang server on CPU cores until Ctrl-C. A fleet file can name it as serving_url."""
    from rose.config import FleetConfig
    from rose.errors import UserError
    from rose.runtime.engines.sglang import require_free_port
    from rose.runtime.models import models
    from rose.terminal import progress, user_errors

    available = sorted(os.sched_getaffinity(0))
    cores = core or available[:1]
    with user_errors():
        if missing := sorted(set(cores) - set(available)):
            raise UserError(f"--core: cores {missing} are not available to this process: choose from {available}")
        require_free_port(port, "this server")
        folder = models.resolve(model, FleetConfig.model_fields["cache"].default, progress(err=True))
    os.sched_setaffinity(0, cores)
    program = [sys.executable, "-m", "rose.runtime.engines.serve_cpu", f"--model-path={folder}", f"--port={port}"]
    program += [f"--served-model-name={model}", "--max-total-tokens=8192", f"--dtype={cpu.dtype()}", *cpu.ARGUMENTS]
    environment = {**os.environ, **cpu.ENVIRONMENT, "OMP_NUM_THREADS": str(len(cores))}
    os.execve(sys.executable, [*program, *(arguments or ())], environment)  # noqa: S606 - no shell is wanted


# Processes that SGLang spawns import this module again, and need the stand-ins.
if __name__ in ("__main__", "__mp_main__"):
    cpu.install()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
