"""Prepares a policy version beside the model in use, then swaps it in between two steps.

Files in the staging folder: `v<version>` is a version that the agent fetched. `held-<version>.json` is the manifest for
audits. Each rank reports the result of its work in `<version>.<verb>.<rank>.json`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.clock import monotonic_ns
from rose.ledger.files.layout import write_file
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.questions import Ranks, Verb
from rose.runtime.coserving.weights.background import Background, GivenUpError, RecordSpan, be_nice
from rose.runtime.coserving.weights.parameters import EngineWeights, copied
from rose.runtime.weight_version import weights_name
from rose.transfer.errors import TransferError

if TYPE_CHECKING:
    import torch

    from rose.transfer.apply.apply import Prepared
    from rose.transfer.apply.aside import Aside
    from rose.transfer.package.manifest import Manifest
    from rose.transfer.turns import Turn

logger = logging.getLogger(__name__)

_AUDIT_NICE = 19


@dataclass(frozen=True, slots=True)
class _Ready:
    manifest: Manifest
    swap: Callable[[], None]
    times: dict[str, object]  # durations to report in ns, and the number of bytes to write
    fingerprints: dict[str, int]  # of the tensors as verified on the host; none on the CPU


class WeightUpdater:
    """Prepares versions in a thread, and commits them. Only the scheduler's thread may use this object.

    `wait_for_device` runs before each portion of work, also without a lease. On CPU, work is done on `host_cores`."""

    def __init__(
        self,
        scheduler: Any,
        model_runner: Any,
        page: ArbiterPage,
        staging: Path,
        ranks: Ranks,
        *,
        wait_for_device: Callable[[], None] = lambda: None,
        host_cores: Sequence[int] = (),
        record_span: RecordSpan | None = None,
    ) -> None:
        #: The engine's version (None before the first swap), and the number of swaps. A version may be swapped in
        #: again: after its weights drifted, or after weights of another trainer.
        self.version: int | None = None
        self.name: str | None = None  #: SGLang's name for these weights, unique across runs.
        self.swaps = 0
        self._scheduler = scheduler
        self._model_runner = model_runner
        self._page = page
        self._staging = staging
        self._ranks = ranks
        _, parameter = next(iter(model_runner.model.named_parameters()))
        self._device: torch.device = parameter.device
        self._on_host = self._device.type == "cpu"
        self._background = Background(wait_for_device, host_cores if self._on_host else (), record_span)
        self._ready: _Ready | None = None
        #: On an accelerator, this decodes on a stream of its own: decoding and steps do not wait for each other.
        self._beside: Aside | None = None
        self._verified: tuple[str, Mapping[str, int]] | None = None

    @property
    def busy(self) -> bool:
        return self._ready is not None or self._background.busy

    def ask(self, verb: Verb, version: int) -> str | None:
        """Begin the work that `verb` names, on all ranks at the same point. Return why that is impossible, or None."""
        ready = None if self._ready is None else self._ready.manifest.version
        work: Callable[[Turn], dict[str, object] | _Ready]
        if verb == "commit":
            if not self._ranks.all_say(ready == version):
                return f"version {version} is not prepared on every rank (on this one: {ready})"
            assert self._ready is not None, "every rank says so"
            # Without `_ready`: its memory is freed before all is hashed, not after.
            manifest, fingerprints = self._ready.manifest, self._ready.fingerprints
            work = partial(self._acknowledge, manifest, fingerprints, self._commit(self._ready))
        elif verb == "prepare":
            work = partial(self._prepare, version)
        else:
            # A version in progress comes first, and the scheduler must never wait for a thread.
            if verb == "audit" and not self._ranks.all_say(ready is None and not self._background.busy):
                return "no audit now: a sync or another audit is running"
            work = partial(self._audit, version)
        self._background.give_up()
        self._ready = None
        self._background.start(lambda turn: self._run(verb, version, work, turn))
        return None

    def _run(
        self, verb: str, version: int, work: Callable[[Turn], dict[str, object] | _Ready], turn: Turn
    ) -> Callable[[], None]:
        ready = None
        try:
            self._background.settle()
            with self._aside().entered():
                done = work(turn)
            ready = done if isinstance(done, _Ready) else None
            outcome = {"ok": True, **(done.times if isinstance(done, _Ready) else done)}
        except GivenUpError:
            raise
        except TransferError as error:
            outcome = {"ok": False, "reason": str(error)}
        except Exception as error:
            logger.exception("ROSE could not %s version %d", verb, version)
            outcome = {"ok": False, "reason": f"{type(error).__name__}: {error}"}

        def report() -> None:
            self._ready = ready
            path = self._staging / f"{version}.{verb}.{self._ranks.rank}.json"
            try:
                write_file(path, json.dumps({"ranks": self._ranks.size, **outcome}).encode(), sync=False)
            except OSError as error:
                # The folder is gone once its agent has ended.
                logger.warning("ROSE cannot write the report %s: %s", path, error.strerror)

        return report

    def _aside(self) -> Aside:
        from rose.transfer.apply.aside import Aside

        if self._beside is None:
            self._beside = Aside(self._device)
        self._beside.follow()
        return self._beside

    def _prepare(self, version: int, turn: Turn) -> _Ready:
        from rose.transfer.apply.apply import prepare
        from rose.transfer.apply.staged import Staged
        from rose.transfer.package.manifest import Manifest

        began = monotonic_ns()
        # The host reads and hashes chunks, which occupies the device only on the CPU.
        beside = turn if self._on_host else nullcontext
        folder = self._staging / f"v{version}"
        first = Manifest.from_bytes((folder / "00.json").read_bytes())
        weights = EngineWeights.of(self._model_runner, first, self._ranks)
        staged = Staged.open(folder, weights.regions, beside)
        published = weights.published(first, turn)
        prepared = prepare(staged, published, weights.regions, turn=turn, aside=self._beside)
        swap = self._second(first, prepared, turn) if self._on_host else partial(_write, prepared, weights)
        times: dict[str, object] = {"verify_ns": staged.verify_ns, "write_bytes": prepared.write_bytes}
        times["stage_ns"] = monotonic_ns() - began - staged.verify_ns
        return _Ready(staged.manifests[-1], swap, times, prepared.fingerprints)

    def _second(self, first: Manifest, prepared: Prepared, turn: Turn) -> Callable[[], None]:
        """Write the version into copies of the parameters (CPU only). Return a function that swaps the copies in."""
        parameters = dict(self._model_runner.model.named_parameters())
        copies = {name: copied(one.detach(), one.dtype, turn) for name, one in parameters.items()}
        prepared.commit(EngineWeights.of(self._model_runner, first, self._ranks, copies).views, turn)

        def swap() -> None:
            for name, parameter in parameters.items():
                parameter.data = copies[name]

        return swap

    def _acknowledge(
        self, manifest: Manifest, expected: dict[str, int], outcome: dict[str, int], turn: Turn
    ) -> dict[str, object]:
        began = monotonic_ns()
        if (drift := self._drift(manifest, expected, turn)) is not None:
            raise TransferError(drift)
        return {**outcome, "sha256": manifest.weights_sha256, "acknowledge_ns": monotonic_ns() - began}

    def _audit(self, version: int, turn: Turn) -> dict[str, object]:
        from rose.transfer.package.manifest import Manifest

        be_nice(_AUDIT_NICE)
        manifest = Manifest.from_bytes((self._staging / f"held-{version}.json").read_bytes())
        sha256, expected = self._verified or ("", {})
        drift = self._drift(manifest, expected if sha256 == manifest.weights_sha256 else {}, turn)
        return {"drift": drift, "sha256": manifest.weights_sha256, "name": self.name}

    def _drift(self, manifest: Manifest, expected: Mapping[str, int], turn: Turn) -> str | None:
        """Return how weights differ from the manifest, or None. If the fingerprints equal `expected`, skip hashing."""
        from rose.transfer.apply.audit import find_drift, fingerprints

        self._verified = None
        weights = EngineWeights.of(self._model_runner, manifest, self._ranks)
        # Before all is hashed, which finds later changes.
        actual = fingerprints(weights.views, manifest, turn) if self._aside().fingerprinted else {}
        drift = None
        if not expected or actual != expected:
            drift = find_drift(weights.views, manifest, weights.regions, turn)
            if expected and drift is None:
                logger.warning("ROSE: fingerprints of version %d differ, but its tensors do not", manifest.version)
        if drift is None:
            self._verified = manifest.weights_sha256, {name: one for name, one in actual.items() if one is not None}
        return drift

    def _commit(self, ready: _Ready) -> dict[str, int]:
        """Swap the version in. Return the pause in ns, and how many steps the engine had run before the swap."""
        began = monotonic_ns()
        held = self._page.open(Party.ROLLOUT, began)  # A held step stays held afterwards.
        self._page.close_span(Party.ROLLOUT, began)
        self._page.open_span(Party.ROLLOUT, Span.SYNC, began)
        ready.swap()
        self.version = ready.manifest.version
        self.name = weights_name(ready.manifest.run_id, self.version)
        self.swaps += 1
        self._page.set(Party.ROLLOUT, Field.SWAPS, self.swaps)
        self._scheduler.record_weight_version_change(new_version=self.name)
        ended = monotonic_ns()
        self._page.close_span(Party.ROLLOUT, ended, aux=self.version)
        if held is not None:
            self._page.open_span(Party.ROLLOUT, held.kind, ended)
        return {"pause_ns": ended - began, "after_step": int(self._scheduler.forward_ct)}


def _write(prepared: Prepared, weights: EngineWeights) -> None:
    import torch

    if any(view.is_cuda for view in weights.views.values()):
        torch.cuda.synchronize()
    prepared.commit(weights.views)
