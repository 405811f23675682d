"""New weights under a running model: published, fetched, prepared beside its steps, written in place, acknowledged.

A trainer on the same device changes its copy and publishes it to a store in a folder. A model steps without end, on a
GPU by replaying a captured CUDA graph, and is brought to each version by the updater that the plugin runs inside an
engine. On CPU cores the same code runs at a smaller size; then a pause says nothing about a bus.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from rose.accept.report import phase
from rose.accept.stage import Scope, StageReport
from rose.accept.stages.live_model import LiveModel, Sizes
from rose.runtime.transfer.codec.bits import integers
from rose.runtime.transfer.layout.fused import hf_views
from rose.runtime.transfer.package.manifest import Manifest
from rose.runtime.transfer.store.store import Publisher, VersionStore
from rose.runtime.transfer.wire.receiver import Receiver
from rose.terminal import echo

#: Shares of the elements that change, the largest first: it hides best what the first commit does once.
SHARES = (0.2, 0.035, 0.014)
_GPU = {"hidden": 4096, "inner": 14336, "heads": 32, "kv_heads": 8, "vocab": 32000}
_CPU = {"hidden": 512, "inner": 1792, "heads": 8, "kv_heads": 2, "vocab": 4000}
#: Layers by (on a GPU, quick): models of 1.8, 1.0, 0.07 and 0.02 GB.
_LAYERS = {(True, False): 3, (True, True): 1, (False, False): 9, (False, True): 2}
#: No version is begun after this share of the stage's time.
_TIME_SHARE = 0.5
#: A store and what is staged from it, against the model's bytes.
_FOLDER_SHARE = 2.0
_STEPS_AFTER = 5
_BUS_BYTES, _BUS_ROUNDS = 256 << 20, 5
_FLIPPED = "model.layers.0.mlp.down_proj.weight"
_PAUSE_TARGET = 3


def measure(scope: Scope, report: StageReport) -> None:
    """Claims what the product promises of a version that is brought in."""
    until_s = time.monotonic() + _TIME_SHARE * scope.seconds
    device = torch.device(scope.device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    sizes = Sizes(layers=_LAYERS[on_gpu, scope.quick], **(_GPU if on_gpu else _CPU))
    with _roomy(scope.folder, sizes) as folder:
        with phase("building the model"):
            engine = LiveModel(sizes, device, folder)
        report.fact("model, bytes", engine.nbytes)
        report.fact("steps are", "replays of a captured CUDA graph" if on_gpu else "computed as they are")
        run = _Run(engine, folder, report)
        bus_bytes_per_s = _bus_bytes_per_s(device) if on_gpu else None
        report.fact("bus to the device, bytes/s", bus_bytes_per_s)
        with engine:
            run.bring_versions(until_s)
            if bus_bytes_per_s is not None:
                run.claim_pauses(bus_bytes_per_s)
            run.flip_a_bit()


@contextmanager
def _roomy(folder: Path, sizes: Sizes) -> Iterator[Path]:
    """Yield `folder`, or a temporary one where that lacks room."""
    needed = _FOLDER_SHARE * sum(2 * torch.Size(shape).numel() for shape in sizes.shapes.values())
    enough = shutil.disk_usage(folder).free > needed
    with nullcontext(folder) if enough else tempfile.TemporaryDirectory(prefix="rose-accept-weights-") as chosen:
        yield Path(chosen)


def _bus_bytes_per_s(device: torch.device) -> float:
    """Return the best rate from pinned host memory to the device."""
    host = torch.empty(_BUS_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_BUS_BYTES, dtype=torch.uint8, device=device)
    took_s = []
    for _ in range(_BUS_ROUNDS):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        target.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        took_s.append(time.perf_counter() - began_s)
    return _BUS_BYTES / min(took_s)


class _Run:
    """Versions of one model, the cost of their pauses, and a flipped bit."""

    def __init__(self, engine: LiveModel, folder: Path, report: StageReport) -> None:
        self._engine, self._report = engine, report
        #: The trainer's copy, laid out as the engine's, and under the published names.
        self._trainer = {name: parameter.data.clone() for name, parameter in engine.parameters.items()}
        config = engine.config
        self._tensors = hf_views(
            self._trainer.items(),
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            vocab_size=config.vocab_size,
        )
        store = VersionStore(folder / "store")
        self._publisher = Publisher(store)
        self._receiver = Receiver(f"file://{store.folder}", None, engine.staging)
        self._manifest: Manifest | None = None
        self._wrong: set[str] = set()
        self._rows: dict[str, dict[str, float]] = report.detail.setdefault("versions", {})

    def bring_versions(self, until_s: float) -> None:
        """Publish versions and bring the engine to each; the first one always, others until `until_s`, monotonic."""
        addresses = self._addresses()
        with phase("publishing version 0"):
            self._publisher.publish(0, self._tensors)
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
        """Publish a version and bring the engine to it. Returns what that took, in seconds and bytes."""
        self._step_trainer(version, share)
        self._engine.expected[version] = self._engine.sums(self._trainer)
        row: dict[str, float] = {}
        with _timed(row, "publish_s"):
            self._publisher.publish(version, self._tensors)
        with _timed(row, "fetch_s"):
            staged = self._receiver.fetch(version, version - 1)
        # The rest of publishing is the trainer's, in another process than an engine's.
        self._publisher.wait()
        manifest = self._manifest = staged.manifests[-1]
        (self._engine.staging / f"v{version}").symlink_to(staged.folder.name)
        with _timed(row, "prepare_s"):
            prepared = _sound(self._engine.ask("prepare", version))
        committed = _sound(self._engine.ask("commit", version))
        if committed["sha256"] != manifest.weights_sha256:
            raise RuntimeError(f"version {version} was acknowledged as {committed['sha256']}")
        self._engine.wait_for_steps(version, _STEPS_AFTER)
        row["commit_s"] = committed["pause_ns"] / 1e9
        row["acknowledge_s"] = committed["acknowledge_ns"] / 1e9
        row["write_bytes"] = prepared["write_bytes"]
        row["changed_share"] = staged.changed_elements / manifest.total_elements
        views = self._engine.views(manifest)
        self._wrong |= {
            name for name, tensor in self._tensors.items() if not torch.equal(integers(views[name]), integers(tensor))
        }
        staged.remove()
        return row

    def _claim_versions(self, addresses: list[int]) -> None:
        steps = self._engine.steps.values()
        taken, right = sum(one.taken for one in steps), sum(one.right for one in steps)
        moved = sum(before != after for before, after in zip(addresses, self._addresses(), strict=True))
        wrong = len(self._wrong) if self._rows else len(self._tensors)
        self._report.fact("versions brought in", len(self._rows))
        self._report.fact("steps since the first version", taken)
        self._report.claim("weights: parameters that moved", moved, "parameters", 0, "lower")
        share = right / taken if taken else 0
        self._report.claim("weights: graph replays that saw the new weights", share, "of all", 1, "higher")
        self._report.claim("weights: wrong tensors", wrong, "tensors", 0, "lower")

    def claim_pauses(self, bus_bytes_per_s: float) -> None:
        """Compare the pauses with what the bus needs for their bytes; the claim is of the worst version."""
        for row in self._rows.values():
            row["pause_over_bus"] = row["commit_s"] / (row["write_bytes"] / bus_bytes_per_s)
        worst = max(row["pause_over_bus"] for row in self._rows.values())
        self._report.claim("weights: pause / time of the bytes over the bus", worst, "x", _PAUSE_TARGET, "lower")

    def flip_a_bit(self) -> None:
        """Flip one bit in the device's memory: the audit must name the tensor."""
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
        """Move some elements by one unit in the last place."""
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


@contextmanager
def _timed(row: dict[str, float], name: str) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    row[name] = time.monotonic() - began_s
