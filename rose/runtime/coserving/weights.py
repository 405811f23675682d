"""Brings the engine to a policy version from inside: decode and check beside the running model, then swap in place.

SGLang's `/set_internal_state` carries numbers only, which is all that is needed: the agent has fetched, verified and
staged version v as `v<version>` in the folder this engine was told of, `rose_prepare_version = v` decodes it into
second buffers in a thread while requests go on, and `rose_commit_version = v` copies it in between two steps.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span

if TYPE_CHECKING:
    import torch

    from rose.runtime.transfer.apply import Prepared
    from rose.runtime.transfer.manifest import Manifest

logger = logging.getLogger(__name__)


class _Handler:
    """The shape SGLang expects of an entry in its table of runtime settings."""

    def __init__(self, validate: Callable[[str, Any], None], apply: Callable[[str, Any], None]) -> None:
        self.validate = validate
        self.apply = apply


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """The engine's parameters under the published names, in the published types.

    An engine may compute in a wider type than the policy is published in (float32 on cores without bfloat16 units).
    Its parameters then hold the published values exactly, and `published` are copies in the published type; where
    the types agree `published` are views of the parameters themselves, and nothing is copied twice.
    """

    views: dict[str, torch.Tensor]
    published: dict[str, torch.Tensor]

    @classmethod
    def of(cls, model_runner: Any, manifest: Manifest) -> EngineWeights:
        """Raises TransferError if the parameters do not fit the model's own head counts."""
        from rose.runtime.transfer.bits import torch_dtype
        from rose.runtime.transfer.fused import hf_views

        config = model_runner.model_config
        views = hf_views(
            model_runner.model.named_parameters(),
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
        )
        types = {entry.name: torch_dtype(entry.dtype) for entry in manifest.tensors}
        return cls(views, {name: view.to(types.get(name, view.dtype)) for name, view in views.items()})

    def write_back(self) -> None:
        """Bring the parameters to what `published` holds."""
        for name, view in self.views.items():
            if self.published[name] is not view:
                view.copy_(self.published[name])

    def read_back(self) -> None:
        """Bring `published` to what the parameters hold. Raises TransferError if one holds more than it can."""
        from rose.runtime.transfer.errors import TransferError

        for name, view in self.views.items():
            copy = self.published[name]
            if copy is not view:
                copy.copy_(view)
                if not bool((copy.to(view.dtype) == view).all()):
                    raise TransferError(f"tensor {name!r} of the engine holds values that {copy.dtype} cannot")


class WeightUpdater:
    """Prepares in a thread, commits at a step boundary; what happened is left as a JSON file for the agent."""

    def __init__(self, scheduler: Any, model_runner: Any, page: ArbiterPage, party: Party, staging: Path) -> None:
        self._scheduler = scheduler
        self._model_runner = model_runner
        self._page = page
        self._party = party
        self._staging = staging
        self._thread: threading.Thread | None = None
        self._prepared: tuple[Prepared, EngineWeights] | None = None
        self._prepared_version: int | None = None

    def handlers(self) -> dict[str, _Handler]:
        return {
            "rose_prepare_version": _Handler(self._accept, self._start_prepare),
            "rose_commit_version": _Handler(self._accept, self._commit),
        }

    def _accept(self, key: str, value: Any) -> None:
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

        if value != int(value) or value < 0:
            raise UpdateRejected(f"{key} must be a whole policy version, not {value!r}")
        if key == "rose_commit_version" and self._prepared_version != int(value):
            raise UpdateRejected(f"version {int(value)} is not prepared (prepared: {self._prepared_version})")

    def _start_prepare(self, _key: str, value: Any) -> None:
        version = int(value)
        self._prepared = self._prepared_version = None
        self._run(self._prepare, version)

    def _run(self, target: Callable[..., None], *args: object) -> None:
        """One thread at a time: a version is checked before the next is prepared."""
        if self._thread is not None:
            self._thread.join()
        self._thread = threading.Thread(target=target, args=args, name="rose-weights", daemon=True)
        self._thread.start()

    def _prepare(self, version: int) -> None:
        from rose.runtime.transfer.apply import prepare
        from rose.runtime.transfer.errors import TransferError
        from rose.runtime.transfer.staged import Staged

        began = monotonic_ns()
        try:
            staged = Staged.open(self._staging / f"v{version}")
            target = EngineWeights.of(self._model_runner, staged.manifests[-1])
            prepared = prepare(staged, target.published)
        except TransferError as error:
            self._report(version, "prepared", {"ok": False, "reason": str(error)})
            return
        except Exception as error:
            logger.exception("ROSE could not prepare version %d", version)
            self._report(version, "prepared", {"ok": False, "reason": f"{type(error).__name__}: {error}"})
            return
        self._prepared, self._prepared_version = (prepared, target), version
        self._report(version, "prepared", {"ok": True, "stage_ns": monotonic_ns() - began})

    def _commit(self, _key: str, value: Any) -> None:
        version = int(value)
        assert self._prepared is not None, "validated before it is applied"
        prepared, target = self._prepared
        self._prepared = self._prepared_version = None
        began = monotonic_ns()
        # A step that is held back when the new version comes goes on being held afterwards.
        held = self._page.open(self._party, began)
        self._page.close_span(self._party, began)
        self._page.open_span(self._party, Span.SYNC, began)
        prepared.commit()
        target.write_back()
        self._scheduler.record_weight_version_change(new_version=str(version))
        ended = monotonic_ns()
        self._page.close_span(self._party, ended, aux=version)
        if held is not None:
            self._page.open_span(self._party, held.kind, ended)
        self._run(self._acknowledge, prepared, target, version, ended - began)

    def _acknowledge(self, prepared: Prepared, target: EngineWeights, version: int, pause_ns: int) -> None:
        """Hash what the engine now holds: only a version that was found there, bit for bit, is acknowledged."""
        from rose.runtime.transfer.errors import TransferError

        try:
            target.read_back()
            sha256 = prepared.verify()
        except TransferError as error:
            self._report(version, "committed", {"ok": False, "reason": str(error), "pause_ns": pause_ns})
            return
        self._page.set(self._party, Field.POLICY_VERSION, version)
        self._report(version, "committed", {"ok": True, "pause_ns": pause_ns, "sha256": sha256})

    def _report(self, version: int, phase: str, outcome: dict[str, object]) -> None:
        path = self._staging / f"{version}.{phase}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(outcome))
        partial.replace(path)
