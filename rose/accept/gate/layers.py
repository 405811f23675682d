"""What a step computes: a stack of transformer-like layers, sized for the device; and when layers were done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from rose.clock import monotonic_ns

#: More than may be queued at a time in any mode.
_ENDS_KEPT = 8
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of two matmuls, hidden to inner and back. Tokens come in multiples of `grain`, `most` at most."""

    layers: int
    hidden: int
    inner: int
    grain: int
    most: int


#: All layers of a stack read the same 0.5 GB of weights, ten times what a card's cache holds.
GPU_SHAPE = Shape(layers=32, hidden=4096, inner=32768, grain=64, most=8192)
CPU_SHAPE = Shape(layers=12, hidden=256, inner=1024, grain=8, most=1024)


class _Layer(torch.nn.Module):
    def __init__(self, norm: torch.nn.RMSNorm, up: torch.nn.Linear, down: torch.nn.Linear) -> None:
        super().__init__()
        self.norm = norm
        self.up, self.down = up, down

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        activated = torch.nn.functional.silu(self.up(self.norm(value)))
        added: torch.Tensor = value + self.down(activated)
        return added


class Stack(torch.nn.Module):
    """On a device, in bf16 on a GPU; `size` has to be called before `step`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.shape = shape = GPU_SHAPE if device.type == "cuda" else CPU_SHAPE
        self._dtype = dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        torch.manual_seed(0)
        up = torch.nn.Linear(shape.hidden, shape.inner, device=device, dtype=dtype)
        down = torch.nn.Linear(shape.inner, shape.hidden, device=device, dtype=dtype)
        norm = torch.nn.RMSNorm(shape.hidden, device=device, dtype=dtype)
        self.layers = torch.nn.ModuleList(_Layer(norm, up, down) for _ in range(shape.layers))
        self.requires_grad_(False)
        self._tokens = torch.zeros(0)
        #: A step as one graph a layer, once it was captured.
        self._graph: Any = None

    def size(self, layer_ns: int) -> int:
        """Take so many tokens a step that a layer takes about `layer_ns`; returns how many."""
        grain, most = self.shape.grain, self.shape.most
        few, many = grain, 16 * grain
        few_ns, many_ns = self.layer_ns(few), self.layer_ns(many)
        grains = round((layer_ns - few_ns) * (many - few) / max(many_ns - few_ns, 1.0) / grain)
        tokens = min(max(few + grains * grain, grain), most)
        self._set_tokens(tokens)
        return tokens

    def layer_ns(self, tokens: int) -> float:
        """What a layer takes for so many tokens: the quickest of a few steps, the first one left out."""
        self._set_tokens(tokens)
        self.step()
        times = []
        for _ in range(_REPEATS):
            began = time.perf_counter_ns()
            self.step()
            times.append(time.perf_counter_ns() - began)
        return min(times) / self.shape.layers

    def _set_tokens(self, tokens: int) -> None:
        self._tokens = torch.randn(tokens, self.shape.hidden, device=self.device, dtype=self._dtype)

    def launch(self) -> torch.Tensor:
        """The layers, queued on a GPU; done when it returns on cores."""
        value = self._tokens
        for layer in self.layers:
            value = layer(value)
        return value

    def step(self, *, graph: bool = False) -> None:
        """One step, done when it returns."""
        with torch.inference_mode():
            if graph:
                self._graph.replay()
            else:
                self.launch()
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def capture(self) -> None:
        """Capture a step as the product has SGLang do it. The layers' hooks are to be marked before."""
        from rose.runtime.coserving.hooks.gate import capture_in_layers

        backend = SimpleNamespace(_device_module=torch.cuda, _graphs={})

        def capture_one(backend: Any, shape_key: str) -> None:
            stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.inference_mode(), torch.cuda.stream(stream):
                self.launch()  # What is set up lazily must not be captured.
            torch.cuda.synchronize()
            device = backend._device_module
            graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
            with torch.inference_mode(), device.graph(cuda_graph=graph, pool=pool, stream=stream):
                self.launch()
            torch.cuda.synchronize()

        capture_in_layers(capture_one, backend, "step")
        self._graph = backend._graphs["step"]


class LayerEnds:
    """When the last few layers ended, on the device's own clock where it has one."""

    def __init__(self, device: torch.device) -> None:
        self.on_cores = device.type == "cpu"
        self._events: deque[Any] = deque(maxlen=_ENDS_KEPT)
        self._ended_ns: deque[int] = deque(maxlen=_ENDS_KEPT)
        self._marker: Any = _event() if not self.on_cores else None

    def note(self) -> None:
        """The layer that was launched last ends here."""
        if self.on_cores:
            self._ended_ns.append(monotonic_ns())
            return
        event = self._events.popleft() if len(self._events) == _ENDS_KEPT else _event()
        event.record()
        self._events.append(event)

    def unfinished(self, wish_ns: int) -> int:
        """Layers that a GPU has not done yet. On cores, where a layer that returned is done: those that ended after
        `wish_ns`."""
        if self.on_cores:
            return sum(ended_ns > wish_ns for ended_ns in self._ended_ns)
        return sum(not event.query() for event in self._events)

    def ended_ns(self) -> list[int]:
        """The last ends, monotonic, in order; waits for a GPU to be done with them."""
        if self.on_cores:
            return list(self._ended_ns)
        self._marker.record()
        self._marker.synchronize()
        now = monotonic_ns()
        return [now - round(event.elapsed_time(self._marker) * 1e6) for event in self._events]


def _event() -> Any:
    create: Callable[..., Any] = torch.cuda.Event
    return create(enable_timing=True)
