"""`python -m tests.runtime.owner_server ...`: SGLang's own server on CPU cores, with stand-ins for what it lacks there;
it finds the plugin by itself, as an owner's server does."""

import runpy

from rose.runtime.platform import cpu

cpu.install()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
