"""Brings the engine to a policy version from inside: decode and check beside the running model, then swap in place.

SGLang's `/set_internal_state` carries numbers only, which is all that is needed. The agent has fetched, verified and
staged version v as `v<version>` in the folder this engine was told of: `rose_prepare_version = v` decodes it into
second buffers in a thread while requests go on, and `rose_commit_version = v` copies it in between two steps.
`rose_audit_version = v` hashes what the engine holds against `held-<version>.json`, a manifest, whenever asked.

Each tensor-parallel rank does so for its own shard; what happened there it leaves as `<version>.<verb>.<rank>.json`.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.audit import AuditStoppedError, find_drift
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.ranks import Ranks

if TYPE_CHECKING:
    import torch

    from rose.runtime.transfer.apply import Prepared
    from rose.runtime.transfer.manifest import Manifest
    from rose.runtime.transfer.regions import Region

logger = logging.getLogger(__name__)

_PREPARE, _COMMIT, _AUDIT = "rose_prepare_version", "rose_commit_version", "rose_audit_version"
#: An audit takes what processor time nobody else wants.
_AUDIT_NICE = 19


class _Handler:
    """The shape SGLang expects of an entry in its table of runtime settings."""

    def __init__(self, validate: Callable[[str, Any], None], apply: Callable[[str, Any], None]) -> None:
        self.validate = validate
        self.apply = apply


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """This rank's parameters under the published names, and the boxes of the whole tensors that they are.

    An engine may compute in a wider type than the policy is published in (float32 on cores without bfloat16 units).
    Its parameters then hold the published values exactly.
    """

    views: dict[str, torch.Tensor]
    #: None on an engine of one rank: each tensor whole.
    regions: dict[str, Region] | None

    @classmethod
    def of(cls, model_runner: Any, manifest: Manifest, ranks: Ranks) -> EngineWeights:
        """Raises TransferError if the parameters do not fit the model's own head counts."""
        from rose.runtime.transfer.fused import hf_views

        config = model_runner.model_config
        views = hf_views(
            model_runner.model.named_parameters(),
            num_heads=config.num_attention_heads // ranks.size,
            num_kv_heads=max(1, config.num_key_value_heads // ranks.size),
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            tp=ranks.size,
            rank=ranks.rank,
        )
        return cls(views, None if ranks.size == 1 else _regions(config, manifest, ranks))

    def published(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """The parameters in the published types: views where the types agree, else copies."""
        from rose.runtime.transfer.bits import torch_dtype

        types = {tensor.name: torch_dtype(tensor.dtype) for tensor in manifest.tensors}
        return {name: view.to(types.get(name, view.dtype)) for name, view in self.views.items()}

    def write_back(self, published: dict[str, torch.Tensor]) -> None:
        """Bring the parameters to what `published` holds."""
        for name, view in self.views.items():
            if published[name] is not view:
                view.copy_(published[name])


def _regions(config: Any, manifest: Manifest, ranks: Ranks) -> dict[str, Region]:
    from rose.runtime.transfer.shards import ModelShape, receiver_regions

    shape = ModelShape(
        {tensor.name: tensor.shape for tensor in manifest.tensors},
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
    )
    return receiver_regions(shape, ranks.size, ranks.rank)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A version that only waits to be swapped in."""

    version: int
    prepared: Prepared
    weights: EngineWeights
    published: dict[str, torch.Tensor]


class WeightUpdater:
    """Prepares in a thread, commits at a step boundary. Its handlers are called by the scheduler's own thread.

    `rejected` is the exception that tells SGLang that a setting was not taken.
    """

    def __init__(
        self,
        scheduler: Any,
        model_runner: Any,
        page: ArbiterPage,
        party: Party,
        staging: Path,
        ranks: Ranks,
        rejected: type[Exception],
    ) -> None:
        #: The version the engine computes with, None until one was swapped in, and how often one was. The same number
        #: may have been swapped in twice, and other weights been there before: drifted ones, or another trainer's.
        self.version: int | None = None
        self.swaps = 0
        self._scheduler = scheduler
        self._model_runner = model_runner
        self._page = page
        self._party = party
        self._staging = staging
        self._ranks = ranks
        self._rejected = rejected
        self._thread: threading.Thread | None = None
        self._busy = False
        self._stop_audit = threading.Event()
        self._ready: _Ready | None = None

    def handlers(self) -> dict[str, _Handler]:
        return {
            _PREPARE: _Handler(self._accept, self._on_prepare),
            _COMMIT: _Handler(self._accept, self._on_commit),
            _AUDIT: _Handler(self._accept, self._on_audit),
        }

    def _accept(self, key: str, value: Any) -> None:
        if value != int(value) or value < 0:
            raise self._rejected(f"{key} must be a whole policy version, not {value!r}")
        ready = None if self._ready is None else self._ready.version
        if key == _COMMIT and not self._ranks.all_say(ready == int(value)):
            raise self._rejected(f"version {int(value)} is not prepared on every rank (on this one: {ready})")
        # A version under way is worth more than an audit, and nothing may keep the scheduler waiting for a thread.
        if key == _AUDIT and not self._ranks.all_say(ready is None and not self._busy):
            raise self._rejected("no audit now: a version is being brought in, or another audit goes on")

    def _on_prepare(self, _key: str, value: Any) -> None:
        version = int(value)
        self._start("prepare", version, lambda: self._prepare(version))

    def _on_commit(self, _key: str, value: Any) -> None:
        ready = self._ready
        assert ready is not None, "validated before it is applied"
        outcome = self._commit(ready)
        # Not `ready` itself: the second buffers go before all is hashed, not after.
        manifest, weights = ready.prepared.staged.manifests[-1], ready.weights
        self._start("commit", manifest.version, lambda: self._acknowledge(manifest, weights, outcome))

    def _on_audit(self, _key: str, value: Any) -> None:
        version = int(value)
        self._start("audit", version, lambda: self._audit(version))

    # ------------------------------------------------------------------ the thread

    def _start(self, verb: str, version: int, work: Callable[[], dict[str, object]]) -> None:
        """One thread at a time: a version is checked before the next is prepared. An audit gives way."""
        self._stop_audit.set()
        if self._thread is not None:
            self._thread.join()
        self._stop_audit.clear()
        self._ready, self._busy = None, True
        self._thread = threading.Thread(target=self._run, args=(verb, version, work), name="rose-weights", daemon=True)
        self._thread.start()

    def _run(self, verb: str, version: int, work: Callable[[], dict[str, object]]) -> None:
        """Do the work and leave what came of it as a file for the agent."""
        from rose.runtime.transfer.errors import TransferError

        try:
            outcome = {"ok": True, **work()}
        except TransferError as error:
            outcome = {"ok": False, "reason": str(error)}
        except AuditStoppedError:
            outcome = {"ok": False, "reason": "the audit gave way to a new version"}
        except Exception as error:
            logger.exception("ROSE could not %s version %d", verb, version)
            outcome = {"ok": False, "reason": f"{type(error).__name__}: {error}"}
        self._busy = False  # Before the agent is told: it may ask for more at once.
        path = self._staging / f"{version}.{verb}.{self._ranks.rank}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"ranks": self._ranks.size, **outcome}))
        partial.replace(path)

    def _prepare(self, version: int) -> dict[str, object]:
        from rose.runtime.transfer.apply import prepare
        from rose.runtime.transfer.manifest import Manifest
        from rose.runtime.transfer.staged import Staged

        began = monotonic_ns()
        folder = self._staging / f"v{version}"
        # All manifests of a chain name the same tensors; which chunks of it to check follows from them.
        first = Manifest.from_bytes((folder / "00.json").read_bytes())
        weights = EngineWeights.of(self._model_runner, first, self._ranks)
        staged = Staged.open(folder, weights.regions)
        published = weights.published(first)
        prepared = prepare(staged, published, weights.regions)
        self._ready = _Ready(version, prepared, weights, published)
        return {"verify_ns": staged.verify_ns, "stage_ns": monotonic_ns() - began - staged.verify_ns}

    def _acknowledge(self, manifest: Manifest, weights: EngineWeights, outcome: dict[str, int]) -> dict[str, object]:
        """Hash what the engine now holds: only a version that was found there, bit for bit, is acknowledged."""
        from rose.runtime.transfer.errors import TransferError

        began = monotonic_ns()
        drift = find_drift(weights.views, manifest, weights.regions)
        if drift is not None:
            raise TransferError(drift)
        self._page.set(self._party, Field.POLICY_VERSION, manifest.version)
        return {**outcome, "sha256": manifest.weights_sha256, "acknowledge_ns": monotonic_ns() - began}

    def _audit(self, version: int) -> dict[str, object]:
        """Whether the engine still holds `version`; with `drift` None it does."""
        from rose.runtime.transfer.manifest import Manifest

        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _AUDIT_NICE)
        manifest = Manifest.from_bytes((self._staging / f"held-{version}.json").read_bytes())
        weights = EngineWeights.of(self._model_runner, manifest, self._ranks)
        drift = find_drift(weights.views, manifest, weights.regions, self._stop_audit.is_set)
        return {"drift": drift, "sha256": manifest.weights_sha256}

    # ------------------------------------------------------------------ the pause

    def _commit(self, ready: _Ready) -> dict[str, int]:
        """Swap the version in; returns how long the engine stood still, and after which of its steps that was."""
        began = monotonic_ns()
        # A step that is held back when the new version comes goes on being held afterwards.
        held = self._page.open(self._party, began)
        self._page.close_span(self._party, began)
        self._page.open_span(self._party, Span.SYNC, began)
        _finish_steps(ready.weights)
        ready.prepared.commit()
        ready.weights.write_back(ready.published)
        self.version = ready.version
        self.swaps += 1
        self._scheduler.record_weight_version_change(new_version=str(ready.version))
        ended = monotonic_ns()
        self._page.close_span(self._party, ended, aux=ready.version)
        if held is not None:
            self._page.open_span(self._party, held.kind, ended)
        return {"pause_ns": ended - began, "after_step": int(self._scheduler.forward_ct)}


def _finish_steps(weights: EngineWeights) -> None:
    """Wait for a step that was launched ahead and may still read the weights on a GPU."""
    if any(view.is_cuda for view in weights.views.values()):
        import torch

        torch.cuda.synchronize()
