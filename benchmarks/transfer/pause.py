"""A live engine's pause for a new version, beside the HTTP call of SGLang's `update_weights_from_disk`."""

import shutil
import statistics
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks import parts
from benchmarks.shared import CACHE
from benchmarks.transfer.child import served
from benchmarks.transfer.scope import Scope
from rose.accept.report import Report
from rose.runtime.agent.weights.sync import EngineSync, Target
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.models import models
from rose.runtime.platform import cpu
from rose.terminal import echo
from rose.transfer.store.store import VersionStore

SHARE = 0.02
_WEIGHTS = "model.safetensors"
_UPDATE_TIMEOUT_S = 300.0


def measure(report: Report, folder: Path, scope: Scope) -> None:
    if not scope.pause_rounds:
        skipped = "skipped by --quick: an engine takes half a minute to start"
        echo(skipped, err=True)
        report.detail["pause"] = {"skipped": skipped}
        return
    model = models.smollm2(CACHE, lambda text: echo(text, err=True))
    # SGLang's Rust server takes no update from disk, which is compared.
    options = {"model_name": models.SMOLLM2, "environment": {"SGLANG_RUST_SERVER": "0"}}
    engine = parts.sglang(folder / "engine", model, 2048, **options)
    try:
        engine.launch()
        engine.wait_ready()
        rounds = _rounds(engine, model, folder, scope.pause_rounds)
    finally:
        engine.stop()
    ours, theirs = (statistics.median(one[name] for one in rounds) for name in ("pause_ms", "sglang_ms"))
    report.claim("SGLang's update from disk against our pause", theirs / ours, "x", 10, "higher")
    report.detail["pause"] = {
        "provenance": "live",
        "model": models.SMOLLM2,
        "engine_dtype": cpu.dtype(),
        "changed_share": SHARE,
        "rounds": rounds,
    }


def _rounds(engine: EngineProcess, model: Path, folder: Path, rounds: int) -> list[dict[str, float]]:
    weights = load_file(model / _WEIGHTS)
    store = VersionStore(folder / "store")
    store.publish(0, weights)
    sync = EngineSync(engine, folder / "engine" / "staging", device_id="benchmark")
    checkpoint = folder / "checkpoint"
    shutil.copytree(model, checkpoint)
    taken = []
    with served(folder / "store") as (url,):
        for version in range(1, rounds + 2):
            weights = _stepped(weights, version)
            store.publish(version, weights)
            event = sync.bring(Target("", version, url))
            assert event.ok, event.reason
            assert event.base_version == version - 1
            assert event.pause_ns is not None
            # The version that the engine already holds, from disk, so that our next delta fits.
            save_file(weights, checkpoint / _WEIGHTS, metadata={"format": "pt"})
            began_ns = time.monotonic_ns()
            answer = engine.post("/update_weights_from_disk", {"model_path": str(checkpoint)}, _UPDATE_TIMEOUT_S)
            sglang_ns = time.monotonic_ns() - began_ns
            assert isinstance(answer, dict)
            assert answer["success"], answer
            taken.append({"pause_ms": event.pause_ns / 1e6, "sglang_ms": sglang_ns / 1e6})
    return taken[1:]


def _stepped(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return the weights with some elements moved by one unit in the last place."""
    generator = torch.Generator().manual_seed(seed)
    stepped = {}
    for name, tensor in weights.items():
        moved = torch.rand(tensor.shape, generator=generator) < SHARE
        stepped[name] = (tensor.view(torch.int16) + moved).view(tensor.dtype)
    return stepped
