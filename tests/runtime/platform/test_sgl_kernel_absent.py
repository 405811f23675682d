import os
import subprocess
import sys

import pytest

from rose.runtime.engines.forkserver import server_environment
from rose.runtime.platform import cpu, gpu

#: A host with a GPU, as far as SGLang's imports can tell. The kernels themselves run on a real one only.
LIKE_A_GPU_HOST = """
import torch
from rose.runtime.platform import cpu
cpu.define_torchvision()
torch.version.cuda = "13.0"
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_name = lambda *_: "NVIDIA H100"
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda *_: type(
    "Properties", (), {"multi_processor_count": 132, "total_memory": 80 << 30, "major": 9, "minor": 0, "name": "H100"}
)
from rose.runtime.platform import gpu
gpu.install()
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, gpu.NATIVE_KERNELS: "1", **gpu._NATIVE_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


needs_no_kernels = pytest.mark.skipif(gpu.has_kernels(), reason="sglang-kernel is installed on this host")


@needs_no_kernels
def test_engines_do_without_the_kernels_only_where_that_is_asked_for(monkeypatch):
    monkeypatch.delenv(gpu.NATIVE_KERNELS, raising=False)
    assert not gpu.native_kernels()
    assert gpu.arguments() == ()
    assert gpu.environment() == {}
    monkeypatch.setenv(gpu.NATIVE_KERNELS, "1")
    assert "--attention-backend=triton" in gpu.arguments()
    assert gpu.environment()["SGLANG_FORCE_FUSED_OP_BACKEND"] == "torch"


@needs_no_kernels
def test_the_stand_in_for_cpu_cores_is_not_taken_for_kernels():
    cpu.install()
    assert not gpu.has_kernels()


@pytest.mark.long
@needs_no_kernels
def test_what_sglang_imports_is_there_and_a_kernel_says_what_is_missing_when_it_is_called():
    modules = ("managers.scheduler", "entrypoints.http_server", "models.llama", "layers.attention.triton_backend")
    imports = "\n".join(f"import sglang.srt.{module}" for module in modules)
    outcome = run(
        f"{LIKE_A_GPU_HOST}{imports}"
        """
import sgl_kernel.quantization
from sgl_kernel import rmsnorm
from sgl_kernel.scalar_type import scalar_types
from sgl_kernel.utils import is_arch_support_pdl
from sglang.kernels.ops.gemm.cutedsl_dual_gemm import DualGemmQuantMode, can_use_dual_gemm
assert scalar_types.uint4b8 is not None
assert not is_arch_support_pdl()
assert not can_use_dual_gemm(16, 4096, 14336, DualGemmQuantMode.UNQUANT)
rmsnorm(1)
"""
    )
    assert "NotImplementedError: sgl_kernel.rmsnorm was called" in outcome.stderr, outcome.stderr[-2000:]
    assert "install the package sglang-kernel" in outcome.stderr


@needs_no_kernels
def test_an_engine_on_cores_of_that_host_does_without_the_compiled_prefix_tree_too(monkeypatch):
    tree = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
    assert tree not in server_environment()
    monkeypatch.setenv(gpu.NATIVE_KERNELS, "1")
    assert server_environment()[tree] == gpu.environment()[tree] == "python"
