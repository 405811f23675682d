from types import SimpleNamespace

import pytest
import torch

from rose.runtime.coserving.hooks.gate import RunAhead, capture_in_layers
from rose.runtime.platform import cpu


@pytest.fixture(autouse=True)
def sglang_can_be_imported():
    if not torch.cuda.is_available():
        cpu.install()


def backend_of(module):
    return SimpleNamespace(_device_module=module, _graphs={})


@pytest.mark.cuda
def test_a_gate_runs_between_the_layers_of_a_replayed_graph_and_the_results_are_those_of_the_whole():
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import eager_on_graph

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64, device="cuda") for _ in range(4)]
    looked: list[int] = []
    gate = eager_on_graph(looked.append)
    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda _module, _args, left=4 - index: gate(left))
    static = torch.zeros(8, 64, device="cuda")
    backend = backend_of(torch.cuda)
    outputs = []

    def forward():
        value = static
        for layer in layers:
            value = torch.relu(layer(value))
        return value

    def capture_one(backend, shape_key):
        stream = torch.cuda.Stream()
        forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        with torch.no_grad(), backend._device_module.graph(cuda_graph=graph, pool=pool, stream=stream):
            outputs.append(forward())
        backend._graphs[shape_key] = graph

    capture_in_layers(capture_one, backend, "shape")
    looked.clear()
    for seed in range(3):
        torch.manual_seed(seed)
        static.copy_(torch.randn(8, 64))
        backend._graphs["shape"].replay()
        torch.cuda.synchronize()
        replayed = outputs[0].clone()
        assert looked == [4, 3, 2, 1]
        looked.clear()
        with torch.no_grad():
            assert torch.allclose(replayed, forward(), atol=1e-5)
        looked.clear()


@pytest.mark.cuda
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_no_more_layers_are_queued_than_may_run_ahead(layers):
    queued, slow = RunAhead(layers), torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        queued.before_layer()
        for _ in range(20):
            slow = slow @ slow * 1e-3
        assert len(queued._queued) < layers
    queued.drain()
    assert not queued._queued
