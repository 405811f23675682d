"""A model that computes step after step, and takes new weights between two of them as a rollout engine does.

Its parameters are laid out as SGLang's, and are what a captured CUDA graph reads. Beside the logits each step sums up
the bits of every parameter, exactly: this tells which weights the step read.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rose.runtime.coserving.hooks.asking import Ranks, Verb
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.coserving.weights.parameters import EngineWeights
from rose.runtime.coserving.weights.weights import WeightUpdater
from rose.runtime.transfer.codec.bits import integers

_SCALE = 0.02
_WARM_STEPS = 3
_POLL_S = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of a Llama, in bf16."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    layers: int

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters, by SGLang's names."""
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            path = f"model.layers.{layer}"
            rows = (self.heads + 2 * self.kv_heads) * self.head_dim
            shapes[f"{path}.input_layernorm.weight"] = (self.hidden,)
            shapes[f"{path}.self_attn.qkv_proj.weight"] = (rows, self.hidden)
            shapes[f"{path}.self_attn.o_proj.weight"] = (self.hidden, self.hidden)
            shapes[f"{path}.mlp.gate_up_proj.weight"] = (2 * self.inner, self.hidden)
            shapes[f"{path}.mlp.down_proj.weight"] = (self.hidden, self.inner)
        return {**shapes, "model.norm.weight": (self.hidden,), "lm_head.weight": (self.vocab, self.hidden)}


@dataclass(slots=True)
class Steps:
    """Steps since a version came in, and how many of them read exactly its weights."""

    taken: int = 0
    right: int = 0


class LiveModel:
    """Steps in a thread while it is entered; `ask` has it do what the agent asks engines for.

    `expected` are the sums of a step from the first commit of a version on.
    """

    def __init__(self, sizes: Sizes, device: torch.device, folder: Path) -> None:
        self.staging = folder / "staging"
        self.staging.mkdir()
        generator = torch.Generator(device).manual_seed(0)
        self.parameters = {
            name: torch.nn.Parameter(
                (torch.randn(shape, generator=generator, device=device) * _SCALE).bfloat16(), requires_grad=False
            )
            for name, shape in sizes.shapes.items()
        }
        self.expected: dict[int, list[int]] = {}
        self.steps: dict[int, Steps] = {}
        self._sizes = sizes
        self._device = device
        self._token = torch.zeros(1, dtype=torch.int64, device=device)
        self.config = SimpleNamespace(
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            vocab_size=sizes.vocab,
        )
        scheduler = SimpleNamespace(forward_ct=0, record_weight_version_change=lambda new_version: None)
        model = SimpleNamespace(named_parameters=self.parameters.items)
        self._runner = SimpleNamespace(model_config=self.config, model=model)
        page = ArbiterPage.create(folder / "page")
        self._updater = WeightUpdater(scheduler, self._runner, page, self.staging, Ranks())
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._failed: BaseException | None = None
        self._step: Callable[[], torch.Tensor] = self._captured() if device.type == "cuda" else self._compute
        self._thread = threading.Thread(target=self._run, name="live-model", daemon=True)

    def __enter__(self) -> LiveModel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters.values())

    def views(self, manifest: Any) -> dict[str, torch.Tensor]:
        """Return the parameters under the published names."""
        return EngineWeights.of(self._runner, manifest, Ranks()).views

    def ask(self, verb: Verb, version: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return the engine's answer. Raises RuntimeError if it refuses, TimeoutError without an answer."""
        refusals: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._asked.put(lambda: refusals.put(self._updater.ask(verb, version)))
        path = self.staging / f"{version}.{verb}.0.json"
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and self._failed is None:
            if not refusals.empty() and (refused := refusals.get()) is not None:
                raise RuntimeError(f"the engine refused to {verb} version {version}: {refused}")
            if path.exists():
                answer: dict[str, Any] = json.loads(path.read_text())
                path.unlink()
                return answer
            time.sleep(_POLL_S)
        raise TimeoutError(f"no answer to {verb} {version} in {timeout_s:g} s (steps: {self._failed or 'running'})")

    def sums(self, tensors: dict[str, torch.Tensor]) -> list[int]:
        """Return the sums of a step that reads these tensors, by the parameters' names."""
        return [int(integers(tensors[name]).sum(dtype=torch.int64)) for name in self.parameters]

    def wait_for_steps(self, version: int, count: int, timeout_s: float = 10.0) -> None:
        """Wait for so many steps with a version. Raises TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        while version not in self.steps or self.steps[version].taken < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the model took fewer than {count} steps with version {version} in {timeout_s:g} s")
            time.sleep(_POLL_S)

    def _run(self) -> None:
        try:
            with self._own_stream():
                while not self._stopped.is_set():
                    while not self._asked.empty():
                        self._asked.get()()
                    version = self._updater.version
                    sums: list[int] = self._step().tolist()  # Waits for the step, as an engine without overlap.
                    if version is not None:
                        steps = self.steps.setdefault(version, Steps())
                        steps.taken += 1
                        steps.right += sums == self.expected[version]
        except BaseException as error:
            self._failed = error
            raise

    def _own_stream(self) -> AbstractContextManager[Any]:
        """Return a stream for the calling thread, on a GPU: it does not wait for what others queue."""
        if self._device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def _captured(self) -> Callable[[], torch.Tensor]:
        torch.cuda.synchronize(self._device)
        with self._own_stream():
            for _ in range(_WARM_STEPS):
                self._compute()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sums = self._compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return sums

        return replay

    @torch.no_grad()
    def _compute(self) -> torch.Tensor:
        """Compute a decoding step of one token, without attention; it reads all weights, and returns their sums."""
        p, heads = self.parameters, self._sizes.hidden
        x = p["model.embed_tokens.weight"][self._token]
        for layer in range(self._sizes.layers):
            path = f"model.layers.{layer}"
            normed = torch.nn.functional.rms_norm(x, x.shape[-1:], p[f"{path}.input_layernorm.weight"])
            qkv = normed @ p[f"{path}.self_attn.qkv_proj.weight"].T
            x = x + qkv[:, :heads] @ p[f"{path}.self_attn.o_proj.weight"].T
            gate, up = (normed @ p[f"{path}.mlp.gate_up_proj.weight"].T).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * up) @ p[f"{path}.mlp.down_proj.weight"].T
        x = torch.nn.functional.rms_norm(x, x.shape[-1:], p["model.norm.weight"])
        self._logits = x @ p["lm_head.weight"].T
        return torch.stack([integers(parameter).sum(dtype=torch.int64) for parameter in p.values()])
