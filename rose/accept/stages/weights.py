"""Publishes and fetches new weights, and writes them in place while a model runs. On CPU cores the model is smaller."""

from __future__ import annotations

import json
import queue
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rose.accept.report import phase
from rose.accept.stage import Scope, StageReport
from rose.accept.stages import engine_models
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.coserving.questions import Ranks, Verb
from rose.runtime.coserving.weights.parameters import EngineWeights
from rose.runtime.coserving.weights.weights import WeightUpdater
from rose.runtime.models.policy_model import PolicyShape
from rose.terminal import echo
from rose.transfer.codec.bits import integers
from rose.transfer.layout.fused import hf_views
from rose.transfer.package.manifest import Manifest
from rose.transfer.sources.sharing import cut_whole
from rose.transfer.store.store import Publisher, VersionStore
from rose.transfer.wire.receiver import Receiver

SHARES = (0.2, 0.035, 0.014)  # Changed elements; the largest first, because the first commit has one-time work.
_GPU = replace(engine_models.LARGE, vocab_size=32000)
_CPU = PolicyShape(
    vocab_size=4000, hidden_size=512, intermediate_size=1792, num_attention_heads=8, num_key_value_heads=2, head_dim=64
)
#: Layers by (on a GPU, quick): models of 1.8, 1.0, 0.07 and 0.02 GB.
_LAYERS = {(True, False): 3, (True, True): 1, (False, False): 9, (False, True): 2}
_TIME_SHARE = 0.5  # No version starts after this share of the stage's time.
_FOLDER_SHARE = 2.0  # Bytes of the store and the staged versions, per byte of the model.
_STEPS_AFTER, _STEPS_TIMEOUT_S = 5, 10.0
_SCALE = 0.02
_WARM_STEPS = 3
_POLL_S = 0.002
_BUS_BYTES, _BUS_COPIES = 256 << 20, 5
_FLIPPED = "model.layers.0.mlp.down_proj.weight"
_PAUSE_TARGET = 3


def measure(scope: Scope, report: StageReport) -> None:
    until_s = time.monotonic() + _TIME_SHARE * scope.seconds
    device = torch.device(scope.device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    shape = replace(_GPU if on_gpu else _CPU, num_hidden_layers=_LAYERS[on_gpu, scope.quick])
    with _roomy(scope.folder, shape) as folder:
        with phase("building the model"):
            engine = LiveModel(shape, device, folder)
        report.fact("model, bytes", sum(parameter.nbytes for parameter in engine.parameters.values()))
        report.fact("steps are", "replays of a captured CUDA graph" if on_gpu else "computed without a graph")
        run = _Run(engine, folder, report)
        bus_bytes_per_s = _bus_bytes_per_s(device) if on_gpu else None
        report.fact("bus to the device, bytes/s", bus_bytes_per_s)
        with engine:
            run.bring_versions(until_s)
            if bus_bytes_per_s is not None:
                run.claim_pauses(bus_bytes_per_s)
            run.flip_a_bit()


@contextmanager
def _roomy(folder: Path, shape: PolicyShape) -> Iterator[Path]:
    needed = _FOLDER_SHARE * 2 * engine_models.parameter_count(shape)
    enough = shutil.disk_usage(folder).free > needed
    with nullcontext(folder) if enough else tempfile.TemporaryDirectory(prefix="rose-accept-weights-") as chosen:
        yield Path(chosen)


def _bus_bytes_per_s(device: torch.device) -> float:
    host = torch.empty(_BUS_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_BUS_BYTES, dtype=torch.uint8, device=device)
    times_s = []
    for _ in range(_BUS_COPIES):
        began_s = time.perf_counter()
        target.copy_(host)
        torch.cuda.synchronize(device)
        times_s.append(time.perf_counter() - began_s)
    return _BUS_BYTES / statistics.median(times_s)


class LiveModel:
    """A model that runs steps in a thread. A step adds up the bits of each parameter; `expected` has the right sums."""

    def __init__(self, shape: PolicyShape, device: torch.device, folder: Path) -> None:
        self.staging = folder / "staging"
        self.staging.mkdir()
        generator = torch.Generator(device).manual_seed(0)
        self.parameters = {
            name: torch.nn.Parameter(
                (torch.randn(size, generator=generator, device=device) * _SCALE).bfloat16(), requires_grad=False
            )
            for name, size in engine_models.sizes_of(shape, fused=True).items()
        }
        self.expected: dict[int, list[int]] = {}
        self.steps: dict[int, list[bool]] = {}  #: Whether each step by version was right.
        self.shape = shape
        self._device = device
        scheduler = SimpleNamespace(forward_ct=0, record_weight_version_change=lambda new_version: None)
        model = SimpleNamespace(named_parameters=self.parameters.items)
        self._runner = SimpleNamespace(model_config=shape, model=model)
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

    def views(self, manifest: Any) -> dict[str, torch.Tensor]:
        return EngineWeights.of(self._runner, manifest, Ranks()).views

    def ask(self, verb: Verb, version: int, timeout_s: float = 60.0) -> dict[str, Any]:
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
        state = self._failed or "running"
        raise TimeoutError(f"no answer to {verb} {version} in {timeout_s:g} s; the state of the model: {state}")

    def wait_for_steps(self, version: int, count: int) -> None:
        deadline_s = time.monotonic() + _STEPS_TIMEOUT_S
        while len(self.steps.get(version, ())) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"the model took fewer than {count} steps with version {version} in {_STEPS_TIMEOUT_S:g} s"
                )
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
                        self.steps.setdefault(version, []).append(sums == self.expected[version])
        except BaseException as error:
            self._failed = error
            raise

    def _own_stream(self) -> AbstractContextManager[Any]:
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
        return torch.stack([integers(parameter).sum(dtype=torch.int64) for parameter in self.parameters.values()])


class _Run:
    def __init__(self, engine: LiveModel, folder: Path, report: StageReport) -> None:
        self._engine, self._report = engine, report
        #: The trainer's copy, laid out as the engine's, and under the published names.
        self._trainer = {name: parameter.data.clone() for name, parameter in engine.parameters.items()}
        shape = engine.shape
        heads = (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim)
        self._tensors = hf_views(self._trainer.items(), *heads, vocab_size=shape.vocab_size)
        store = VersionStore(folder / "store")
        self._publisher = Publisher(store)
        self._receiver = Receiver(f"file://{store.folder}", None, engine.staging)
        self._manifest: Manifest | None = None
        self._wrong: set[str] = set()
        self._rows: dict[str, dict[str, float]] = report.detail.setdefault("versions", {})

    def bring_versions(self, until_s: float) -> None:
        addresses = self._addresses()
        with phase("publishing version 0"):
            self._publisher.publish(0, cut_whole(self._tensors))
            self._publisher.wait()
        try:
            for version, share in enumerate(SHARES, start=1):
                if version > 1 and time.monotonic() > until_s:
                    self._report.fact("left out: too little time", [f"{late:.1%}" for late in SHARES[version - 1 :]])
                    break
                with phase(f"version {version}, {share:.1%} changed"):
                    self._rows[f"{share:.1%}"] = self._bring(version, share)
                self._report.save()
        finally:
            self._claim_versions(addresses)

    def _bring(self, version: int, share: float) -> dict[str, float]:
        self._step_trainer(version, share)
        sums = [int(integers(self._trainer[name]).sum(dtype=torch.int64)) for name in self._engine.parameters]
        self._engine.expected[version] = sums
        self._publisher.publish(version, cut_whole(self._tensors))
        staged = self._receiver.fetch(version, version - 1)
        self._publisher.wait()  # In a fleet the trainer's process does the rest of publishing.
        manifest = self._manifest = staged.manifests[-1]
        (self._engine.staging / f"v{version}").symlink_to(staged.folder.name)
        prepared = _sound(self._engine.ask("prepare", version))
        committed = _sound(self._engine.ask("commit", version))
        if committed["sha256"] != manifest.weights_sha256:
            raise RuntimeError(f"version {version} was acknowledged with the wrong SHA-256 {committed['sha256']}")
        self._engine.wait_for_steps(version, _STEPS_AFTER)
        views = self._engine.views(manifest)
        self._wrong |= {
            name for name, tensor in self._tensors.items() if not torch.equal(integers(views[name]), integers(tensor))
        }
        staged.remove()
        return {
            "commit_s": committed["pause_ns"] / 1e9,
            "write_bytes": prepared["write_bytes"],
            "changed_share": staged.changed_elements / manifest.total_elements,
        }

    def _claim_versions(self, addresses: list[int]) -> None:
        steps = self._engine.steps.values()
        taken, right = sum(map(len, steps)), sum(map(sum, steps))
        moved = sum(before != after for before, after in zip(addresses, self._addresses(), strict=True))
        wrong = len(self._wrong) if self._rows else len(self._tensors)
        self._report.fact("versions brought in", len(self._rows))
        self._report.fact("steps since the first version", taken)
        if self._trainer[_FLIPPED].is_cuda:  # In host memory, a version is swapped in by address.
            self._report.claim("weights: parameters that moved", moved, "parameters", 0, "lower")
        share = right / taken if taken else 0
        self._report.claim("weights: graph replays that saw the new weights", share, "of all", 1, "higher")
        self._report.claim("weights: wrong tensors", wrong, "tensors", 0, "lower")

    def claim_pauses(self, bus_bytes_per_s: float) -> None:
        for row in self._rows.values():
            row["pause_over_bus"] = row["commit_s"] / (row["write_bytes"] / bus_bytes_per_s)
        worst = max(row["pause_over_bus"] for row in self._rows.values())
        self._report.claim("weights: pause / time of the bytes over the bus", worst, "x", _PAUSE_TARGET, "lower")

    def flip_a_bit(self) -> None:
        """Flip one bit in device memory. The audit must then name the tensor that has the bit."""
        manifest = self._manifest
        assert manifest is not None, "a version was brought in"
        (self._engine.staging / f"held-{manifest.version}.json").write_bytes(manifest.to_bytes())
        before = self._engine.ask("audit", manifest.version)
        bits = integers(self._engine.parameters[_FLIPPED].data)
        bits[bits.numel() // 2] ^= 1
        self._synchronize()
        after = self._engine.ask("audit", manifest.version)
        echo(f"audit of a flipped bit: {after}")
        noticed = bool(before.get("ok")) and before["drift"] is None and repr(_FLIPPED) in str(after.get("drift"))
        self._report.claim("weights: flipped bit found", int(noticed), "bits", 1, "higher")

    def _step_trainer(self, seed: int, share: float) -> None:
        device = self._trainer[_FLIPPED].device
        generator = torch.Generator(device).manual_seed(seed)
        for tensor in self._trainer.values():
            changed = torch.rand(tensor.shape, generator=generator, device=device) < share
            integers(tensor).add_(changed.reshape(-1).short())
        self._synchronize()

    def _synchronize(self) -> None:
        if self._trainer[_FLIPPED].is_cuda:
            torch.cuda.synchronize()

    def _addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._engine.parameters.values()]


def _sound(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer["ok"]:
        raise RuntimeError(str(answer["reason"]))
    return answer
