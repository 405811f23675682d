from __future__ import annotations

import pytest

from rose.runtime.coserving.hooks.mechanisms import ComputeFacts, memory_mechanism


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"gated": False}, "exclusive"),
        ({"gated": False, "decode_graphs": "full", "prefill_graphs": "breakable"}, "exclusive"),
        ({"gated": True}, "layer-yield"),
        ({"gated": True, "decode_graphs": "full"}, "layer-graphs+layer-yield"),
        # What a fleet file's own arguments made of it: a replayed prefill has no gate between its layers.
        ({"gated": True, "decode_graphs": "full", "prefill_graphs": "breakable"}, "step-yield"),
        ({"gated": True, "prefill_graphs": "full"}, "step-yield"),
        ({"gated": True, "decode_graphs": "breakable"}, "step-yield"),
        ({"gated": True, "decode_graphs": "full", "mps": True}, "mps+layer-graphs+layer-yield"),
        ({"gated": True, "mps": True, "native_kernels": True}, "native-kernels+mps+layer-yield"),
        ({"gated": False, "native_kernels": True}, "native-kernels+exclusive"),
    ],
)
def test_a_compute_mechanism_is_what_the_facts_give(facts, name):
    assert ComputeFacts(**facts).mechanism() == name


def test_the_operating_system_takes_cores_from_gated_engines_only():
    assert ComputeFacts(gated=True).mechanism(preemptible=True) == "idle-class+layer-yield"
    assert ComputeFacts(gated=False).mechanism(preemptible=True) == "exclusive"


def test_a_memory_mechanism_is_what_happens_to_what_is_cut():
    assert memory_mechanism(pool="page-return", leased=True) == "page-return"
    assert memory_mechanism(pool=None, leased=True) == "leased+budget"
    assert memory_mechanism(pool=None, leased=False) == "budget"


#: An engine on a GPU, as far as SGLang's own resolution of its arguments goes; the card itself is made up.
RESOLVED = """
from types import SimpleNamespace
import torch
from rose.runtime.engines import cpu
cpu.install()
from sglang.srt import runtime_context
from sglang.srt.model_executor.cuda_graph_config import CudaGraphConfig, PhaseConfig
torch.cuda.current_device = lambda: 0
from rose.runtime.coserving.hooks.mechanisms import ComputeFacts
for prefill in ("disabled", "breakable"):
    graphs = CudaGraphConfig(decode=PhaseConfig(backend="full"), prefill=PhaseConfig(backend=prefill))
    runtime_context.get_exec = lambda: SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=graphs))
    print("resolved:", ComputeFacts.of_engine(SimpleNamespace(device="cuda"), gated=True).mechanism())
"""
