"""What lets released SGLang run on CPU cores. Nothing here is imported where a GPU is used."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

#: An engine's environment on CPU cores. PASSIVE: waiting OpenMP threads must not spin on a core they share.
#: On a host that has GPUs as well SGLang would take one by itself.
ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}

#: An engine's arguments on CPU cores. `--sleep-on-idle` matters most: without it an idle scheduler spins a core.
ARGUMENTS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--disable-overlap-schedule",
    "--sleep-on-idle",
    "--mem-fraction-static=0.1",
)

#: Flags of /proc/cpuinfo (x86, then Arm) that say the cores multiply bfloat16 themselves.
_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}


def dtype() -> Literal["bfloat16", "float32"]:
    """What engines compute in on these cores.

    Without bfloat16 units a bfloat16 product costs as much for each row as for the first, so batching gains nothing;
    float32 is four to seven times faster from 16 rows on, and holds every bfloat16 weight exactly.
    """
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "float32"
    return "bfloat16" if _BF16_FLAGS & set(text.split()) else "float32"


def install() -> None:
    """Install the stand-ins in this process; must run before `sglang` is imported, in spawned children too."""
    from rose.runtime.engines.cpu import sgl_kernel_cpu, torchvision_ops

    torchvision_ops.define()
    sgl_kernel_cpu.install()
