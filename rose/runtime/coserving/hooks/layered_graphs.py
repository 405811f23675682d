"""Decode steps captured as one CUDA graph a layer, so that a gate can run between two of them.

SGLang replays a decode step as one graph, which nothing can stop once it was launched. Its breakable capture ends a
segment wherever a function runs that is marked as eager; here that is the gate before each layer. Everything else of
SGLang's full capture stays as it is: attention within the graphs, the inputs' and outputs' addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _CapturingDevice:
    """SGLang's device module, but that its `graph` captures in segments."""

    def __init__(self, module: Any) -> None:
        from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import BreakableCUDAGraph

        self._module = module
        self.captured = BreakableCUDAGraph()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def graph(self, *, cuda_graph: Any, pool: Any, stream: Any) -> Any:
        """A context that captures into `captured`; `cuda_graph` stays empty."""
        from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import BreakableCUDAGraphCapture

        return BreakableCUDAGraphCapture(self.captured, pool=pool, stream=stream)


def capture_in_layers(original: Callable[..., Any], backend: Any, shape_key: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang's `FullCudaGraphBackend.capture_one`, in segments."""
    module = backend._device_module
    backend._device_module = device = _CapturingDevice(module)
    try:
        original(backend, shape_key, *args, **kwargs)
    finally:
        backend._device_module = module
    backend._graphs[shape_key] = device.captured


def before_each_layer(between_layers: Callable[[int], None]) -> Callable[[int], None]:
    """`between_layers`, as what ends a segment while a graph is captured, and runs between two when it is replayed."""
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import eager_on_graph

    marked: Callable[[int], None] = eager_on_graph(between_layers)
    return marked
