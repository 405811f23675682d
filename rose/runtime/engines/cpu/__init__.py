"""What lets released SGLang run on CPU cores. Nothing here is imported where a GPU is used."""

from __future__ import annotations

#: An engine's environment on CPU cores. PASSIVE: waiting OpenMP threads must not spin on a core they share.
ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}

#: An engine's arguments on CPU cores. `--sleep-on-idle` matters most: without it an idle scheduler spins a core.
ARGUMENTS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--disable-overlap-schedule",
    "--sleep-on-idle",
    "--mem-fraction-static=0.1",
)


def install() -> None:
    """Install the stand-ins in this process; must run before `sglang` is imported, in spawned children too."""
    from rose.runtime.engines.cpu import sgl_kernel_cpu, torchvision_ops

    torchvision_ops.define()
    sgl_kernel_cpu.install()
