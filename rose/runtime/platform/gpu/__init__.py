"""Settings for engines on a GPU. With `NATIVE_KERNELS`, engines run without SGLang's compiled kernels."""

import importlib.util
import os

from rose.runtime.platform import sgl_kernel_absent

#: With 1, an engine starts without `sglang-kernel`, on plain torch and Triton. It has the same mechanisms, but is
#: slower.
NATIVE_KERNELS = "ROSE_NATIVE_KERNELS"

#: A step that was launched ahead could not be held. An idle scheduler that spins would take a core. Decode keeps its
#: graphs, one per layer: see `rose.runtime.coserving.hooks.gate`.
GATED_ARGUMENTS = ("--disable-overlap-schedule", "--cuda-graph-backend-prefill=disabled", "--sleep-on-idle")
DEDICATED_ARGUMENTS = ("--sleep-on-idle",)

_NATIVE_ARGUMENTS = (
    "--attention-backend=triton",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--cuda-graph-backend-prefill=disabled",
)
#: The compiled prefix tree works only with the torch for which it was built.
_NATIVE_TREE = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
_NATIVE_ENVIRONMENT = {
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
    **_NATIVE_TREE,
}


def native_kernels() -> bool:
    """Return whether SGLang's compiled kernels are missing and this environment lets engines run without them."""
    return os.environ.get(NATIVE_KERNELS) == "1" and not has_kernels()


def has_kernels() -> bool:
    spec = importlib.util.find_spec("sgl_kernel")
    return spec is not None and spec.origin is not None  # The stand-in has no file.


def arguments() -> tuple[str, ...]:
    return _NATIVE_ARGUMENTS if native_kernels() else ()


def environment() -> dict[str, str]:
    return _NATIVE_ENVIRONMENT if native_kernels() else {}


def environment_on_cores() -> dict[str, str]:
    return _NATIVE_TREE if native_kernels() else {}


def install() -> None:
    if native_kernels():
        sgl_kernel_absent.install()
