"""New weights under a running model: published, fetched, prepared beside its steps, written in place, acknowledged.

A trainer on the same device changes its copy and publishes it with the real publisher to a store in a folder. A model
steps without end, on a GPU by replaying a captured CUDA graph, and is brought to each version by the updater that the
plugin runs inside an engine. On CPU cores the same code runs at a smaller size; then a pause says nothing of a bus.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch

from rose.accept.report import phase
from rose.accept.stage import Scope, StageReport
from rose.accept.stages.live_model import LiveModel, Sizes, stream_of_its_own
from rose.runtime.transfer.apply.audit import find_drift, fingerprints
from rose.runtime.transfer.codec.bits import integers
from rose.runtime.transfer.layout.fused import hf_views
from rose.runtime.transfer.package.manifest import Manifest
from rose.runtime.transfer.package.staged import Staged
from rose.runtime.transfer.store.store import Publisher, VersionStore
from rose.runtime.transfer.wire.receiver import Receiver
from rose.terminal import echo

#: Shares of the elements that change, the most first: what the first commit does once is least seen there.
SHARES = (0.2, 0.035, 0.014)
_GPU = {"hidden": 4096, "inner": 14336, "heads": 32, "kv_heads": 8, "vocab": 32000}
_CPU = {"hidden": 512, "inner": 1792, "heads": 8, "kv_heads": 2, "vocab": 4000}
#: (on a GPU, quick) to layers: 1.8, 1.0, 0.07 and 0.02 GB.
_LAYERS = {(True, False): 3, (True, True): 1, (False, False): 9, (False, True): 2}
#: Of the stage's time; no version is begun later.
_TIME_SHARE = 0.6
#: A store and what is staged from it, against the model's bytes.
_FOLDER_SHARE = 2.0
_STEPS_AFTER = 5
_BUS_BYTES = 256 << 20
_BUS_ROUNDS = 5
_ROUNDS = 2
_FLIPPED = "model.layers.0.mlp.down_proj.weight"
_PAUSE_TARGET = 3


def measure(scope: Scope, report: StageReport) -> None:
    """Claims what the product promises of a version that is brought in; a part that fails does not end the others."""
    device = torch.device(scope.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    sizes = Sizes(layers=_LAYERS[device.type == "cuda", scope.quick], **(_GPU if device.type == "cuda" else _CPU))
    with _roomy(scope.folder, sizes) as folder:
        with phase("building the model"):
            engine = LiveModel(sizes, device, folder)
        report.fact("model, bytes", engine.nbytes)
        report.fact("parameters", len(engine.parameters))
        report.fact(
            "steps are", "replays of a captured CUDA graph" if device.type == "cuda" else "computed as they are"
        )
        # What is left counts from the start of this process: imports take their part.
        left_s = _TIME_SHARE * scope.seconds - (time.time() - psutil.Process().create_time())
        _Run(engine, folder, report, until=time.monotonic() + left_s).run()


@contextmanager
def _roomy(folder: Path, sizes: Sizes) -> Iterator[Path]:
    """`folder`, or a temporary one where that lacks room."""
    wanted = _FOLDER_SHARE * sum(2 * torch.Size(shape).numel() for shape in sizes.shapes.values())
    enough = shutil.disk_usage(folder).free > wanted
    with nullcontext(folder) if enough else tempfile.TemporaryDirectory(prefix="rose-accept-weights-") as chosen:
        yield Path(chosen)


class _Run:
    """The parts, on one model: versions, what their pauses cost, a flipped bit, and what it takes to find one."""

    def __init__(self, engine: LiveModel, folder: Path, report: StageReport, until: float) -> None:
        self._engine = engine
        self._report = report
        self._until = until
        self._device = next(iter(engine.parameters.values())).device
        #: The trainer's own, laid out as the engine's, and under the published names.
        self._trainer = {name: parameter.data.clone() for name, parameter in engine.parameters.items()}
        config = engine.config
        self._tensors = hf_views(
            self._trainer.items(),
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            vocab_size=config.vocab_size,
        )
        self._store = VersionStore(folder / "store")
        self._publisher = Publisher(self._store)
        self._receiver = Receiver(f"file://{self._store.folder}", None, engine.staging)
        self._manifest: Manifest | None = None
        self._bus_bytes_per_s: float | None = None
        self._wrong: set[str] = set()
        self._places = self._addresses()
        self._rows: dict[str, dict[str, float]] = report.detail.setdefault("versions", {})

    def run(self) -> None:
        """Raises what the first part that failed raised, once all were tried."""
        failed: list[Exception] = []

        def attempt(part: Callable[[], None]) -> None:
            try:
                part()
            except Exception as error:
                echo(f"{part.__name__.strip('_')}: {type(error).__name__}: {error}")
                failed.append(error)

        attempt(self._bus)
        with phase("publishing version 0"):
            began = time.monotonic()
            self._publisher.publish(0, self._tensors)
            self._publisher.wait()
            self._report.fact("publish of version 0, s", time.monotonic() - began)
        with self._engine:
            attempt(self._versions)
            attempt(self._pauses)
            attempt(self._costs)
            attempt(self._flip)
        if failed:
            raise failed[0]

    def _versions(self) -> None:
        left_out = list(SHARES)
        try:
            for version, share in enumerate(SHARES, start=1):
                if version > 1 and time.monotonic() > self._until:
                    break
                with phase(f"version {version}, {share:.1%} changed"):
                    self._rows[f"{share:.1%}"] = self._bring(version, share)
                left_out.remove(share)
                self._report.save()
        finally:
            self._claim_versions()
            if left_out:
                self._report.fact("left out for want of time", [f"{share:.1%}" for share in left_out])

    def _bring(self, version: int, share: float) -> dict[str, float]:
        """Publish a version and bring the engine to it. Returns what that took, in seconds and bytes."""
        self._step_trainer(version, share)
        self._engine.expected[version] = self._engine.sums(self._trainer)
        row: dict[str, float] = {}
        with _timed(row, "publish_s"):
            self._publisher.publish(version, self._tensors)
        with _timed(row, "fetch_s"):
            staged = self._receiver.fetch(version, version - 1)
        # Its composite delta is a trainer's business, in another process than an engine's.
        self._publisher.wait()
        row |= self._sync(version, staged)
        views = self._engine.views(staged.manifests[-1])
        self._wrong |= {
            name for name, tensor in self._tensors.items() if not torch.equal(integers(views[name]), integers(tensor))
        }
        row["changed_share"] = staged.changed_elements / staged.manifests[-1].total_elements
        staged.remove()
        return row

    def _sync(self, version: int, staged: Staged) -> dict[str, float]:
        """Prepare, commit and acknowledge, as the agent asks for it."""
        (self._engine.staging / f"v{version}").symlink_to(staged.folder.name)
        row: dict[str, float] = {}
        with _timed(row, "prepare_s"):
            prepared = _sound(self._engine.ask("prepare", version))
        committed = _sound(self._engine.ask("commit", version))
        self._manifest = staged.manifests[-1]
        if committed["sha256"] != self._manifest.weights_sha256:
            raise RuntimeError(f"version {version} was acknowledged as {committed['sha256']}")
        self._wait_for_steps(version)
        row["commit_s"] = committed["pause_ns"] / 1e9
        row["acknowledge_s"] = committed["acknowledge_ns"] / 1e9
        row["write_bytes"] = prepared["write_bytes"]
        return row

    def _claim_versions(self) -> None:
        steps = self._engine.steps.values()
        taken, saw_it = sum(one.taken for one in steps), sum(one.saw_it for one in steps)
        moved = sum(before != after for before, after in zip(self._places, self._addresses(), strict=True))
        brought = len(self._rows)
        self._report.fact("versions brought in", brought)
        self._report.claim("weights: parameters that moved", moved, "parameters", 0, "lower")
        self._report.claim(
            "weights: graph replays that saw the new weights", saw_it / taken if taken else 0, "of all", 1, "higher"
        )
        self._report.claim(
            "weights: wrong tensors", len(self._wrong) if brought else len(self._tensors), "tensors", 0, "lower"
        )
        self._report.fact("steps since the first version", taken)
        for name, row in self._rows.items():
            for verb in ("publish", "prepare", "commit", "acknowledge"):
                self._report.fact(f"{verb}, {name} changed, s", row[f"{verb}_s"])

    def _pauses(self) -> None:
        """How long the pauses are against what the bus needs for their bytes: the worst of the versions."""
        self._held()
        if self._bus_bytes_per_s is None:
            return
        for row in self._rows.values():
            row["pause_over_bus"] = row["commit_s"] / (row["write_bytes"] / self._bus_bytes_per_s)
        worst = max(row["pause_over_bus"] for row in self._rows.values())
        self._report.claim("weights: pause / time of the bytes over the bus", worst, "x", _PAUSE_TARGET, "lower")

    def _costs(self) -> None:
        """What it takes to look at all weights beside the steps: on the device, and by reading them back."""
        manifest = self._held()
        views = self._engine.views(manifest)
        ways: dict[str, Callable[[], object]] = {
            "fingerprints": lambda: fingerprints(views, manifest),
            "reading all back": lambda: find_drift(views, manifest),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        with stream_of_its_own(self._device), phase("looking at all weights"):
            for _ in range(_ROUNDS):
                for name, way in ways.items():
                    began = time.monotonic()
                    way()
                    took[name].append(time.monotonic() - began)
        for name, seconds in took.items():
            self._report.fact(f"all weights by {name}, s", min(seconds))

    def _flip(self) -> None:
        """One bit in the device's memory: the audit must say where."""
        manifest = self._held()
        (self._engine.staging / f"held-{manifest.version}.json").write_bytes(manifest.to_bytes())
        before = self._engine.ask("audit", manifest.version)
        bits = integers(self._engine.parameters[_FLIPPED].data)
        bits[bits.numel() // 2] ^= 1
        self._wait_for_device()
        after = self._engine.ask("audit", manifest.version)
        echo(f"audit of a flipped bit: {after}")
        found = before.get("ok") and before["drift"] is None and repr(_FLIPPED) in str(after.get("drift"))
        self._report.claim("weights: flipped bit found", int(bool(found)), "bits", 1, "higher")

    def _bus(self) -> None:
        """Bytes a second from pinned host memory, at best; unknown where there is no bus."""
        if self._device.type != "cuda":
            return
        host = torch.empty(_BUS_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_BUS_BYTES, dtype=torch.uint8, device=self._device)
        took = []
        for _ in range(_BUS_ROUNDS):
            torch.cuda.synchronize()
            began = time.perf_counter()
            there.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
        self._bus_bytes_per_s = _BUS_BYTES / min(took)
        self._report.fact("bus to the device, bytes/s", self._bus_bytes_per_s)

    def _step_trainer(self, seed: int, share: float) -> None:
        """Some elements move by one unit in the last place."""
        generator = torch.Generator(self._device).manual_seed(seed)
        for tensor in self._trainer.values():
            moved = torch.rand(tensor.shape, generator=generator, device=self._device) < share
            integers(tensor).add_(moved.reshape(-1).short())
        self._wait_for_device()

    def _wait_for_steps(self, version: int, timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if version in self._engine.steps and self._engine.steps[version].taken >= _STEPS_AFTER:
                return
            time.sleep(0.001)
        raise TimeoutError(f"the model took no {_STEPS_AFTER} steps with version {version} in {timeout_s:g} s")

    def _wait_for_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _held(self) -> Manifest:
        if self._manifest is None:
            raise RuntimeError("no version was brought in")
        return self._manifest

    def _addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._engine.parameters.values()]


def _sound(report: dict[str, Any]) -> dict[str, Any]:
    if not report["ok"]:
        raise RuntimeError(str(report["reason"]))
    return report


@contextmanager
def _timed(row: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    row[name] = time.monotonic() - began
