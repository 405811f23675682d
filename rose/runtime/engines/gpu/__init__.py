"""How engines run on a GPU. With `NATIVE_KERNELS` set they run where SGLang's compiled kernels are not installed."""

from __future__ import annotations

import importlib.util
import os

#: Set to 1, an engine starts without the package `sglang-kernel`: norms, activations and rotary embeddings in plain
#: torch, attention in Triton. It shows that the mechanisms work on a card; its speed is not SGLang's.
NATIVE_KERNELS = "ROSE_NATIVE_KERNELS"

#: A step that was launched ahead could not be held back, and an idle scheduler that spins takes a core from whoever
#: works. Decode steps keep their graphs, one a layer: see `rose.runtime.coserving.hooks.gate`.
GATED_ARGUMENTS = (
    "--disable-overlap-schedule",
    "--cuda-graph-backend-prefill=disabled",
    "--sleep-on-idle",
)
#: A rollout engine that has its GPU alone shares the host's cores all the same.
DEDICATED_ARGUMENTS = ("--sleep-on-idle",)

_NATIVE_ARGUMENTS = (
    "--attention-backend=triton",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--cuda-graph-backend-prefill=disabled",
)
#: SGLang's compiled prefix tree reads tensors of the torch that it was built with, which a host without the kernels
#: need not have.
_NATIVE_TREE = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
_NATIVE_ENVIRONMENT = {
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
    **_NATIVE_TREE,
}


def native_kernels() -> bool:
    """Whether engines of this environment do without the kernels: asked for, and not installed."""
    return os.environ.get(NATIVE_KERNELS) == "1" and not has_kernels()


def has_kernels() -> bool:
    """Whether SGLang's compiled CUDA kernels are installed."""
    try:
        return importlib.util.find_spec("sgl_kernel") is not None
    except ValueError:  # The stand-in for CPU cores is in this process; it was found nowhere.
        return False


def arguments() -> tuple[str, ...]:
    """An engine's arguments on a GPU of this host."""
    return _NATIVE_ARGUMENTS if native_kernels() else ()


def environment() -> dict[str, str]:
    """An engine's environment on a GPU of this host."""
    return _NATIVE_ENVIRONMENT if native_kernels() else {}


def environment_on_cores() -> dict[str, str]:
    """What an engine on CPU cores of this host has of it: its torch is the same."""
    return _NATIVE_TREE if native_kernels() else {}


def install() -> None:
    """Install the stand-in for the kernels if engines do without; must run before `sglang` is imported."""
    if native_kernels():
        from rose.runtime.engines.gpu import sgl_kernel_absent

        sgl_kernel_absent.install()
