"""Stand-ins and settings that released SGLang needs on CPU cores. This module is never imported where a GPU is used."""

from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from rose.runtime.platform import sgl_kernel_absent

#: PASSIVE: OpenMP threads that wait must not spin on a shared core. No CUDA device is visible: on a host with GPUs,
#: SGLang would take one by itself.
ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}

#: `--sleep-on-idle` matters most: without it an idle scheduler spins on a core.
ARGUMENTS = ("--device=cpu", "--attention-backend=torch_native", "--sleep-on-idle", "--mem-fraction-static=0.1")

_TORCHVISION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[object] = []

#: Flags in /proc/cpuinfo (x86, then Arm) that show that cores multiply bfloat16 in hardware.
_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}


def dtype() -> Literal["bfloat16", "float32"]:
    """Return the engines' data type. Without bfloat16 units, float32 is 4 to 7 times faster for 16 rows or more."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "float32"
    return "bfloat16" if _BF16_FLAGS & set(text.split()) else "float32"


def install() -> None:
    """Install the stand-ins. Call this before `sglang` is imported, also in spawned children."""
    define_torchvision()
    sgl_kernel_absent.install()


def define_torchvision() -> None:
    """Let a CUDA build of torchvision load with a CPU torch: define its operators, which text models never call."""
    import torch

    if torch.version.cuda is not None or hasattr(torch.ops.torchvision, "nms"):
        return
    spec = PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    with suppress(OSError):  # A build for cores has the operators.
        torch.ops.load_library(Path(spec.origin).with_name("_C.so"))  # type: ignore[no-untyped-call]
        return
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}{_TORCHVISION}")  # type: ignore[no-untyped-call]
    _libraries.append(library)
