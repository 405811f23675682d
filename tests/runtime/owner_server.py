"""`python -m tests.runtime.owner_server ...`: SGLang's own `python -m sglang.launch_server ...` on a host with no GPU.

Only what released SGLang lacks there is put in place first, in the processes that it spawns too. Nothing tells it of
ROSE: it finds the plugin by itself, as an owner's server does.
"""

from __future__ import annotations

import runpy

from rose.runtime.engines import cpu

cpu.install()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
