"""The plugin inside a rollout engine: telemetry, weights and, on a shared device, the gate and a guard of KV memory."""

import logging
import os
import time
from functools import partial
from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.attachment import Attachment, describe
from rose.runtime.coserving.hooks.gate import RolloutGate, RunAhead, layers_of
from rose.runtime.coserving.hooks.mechanisms import compute_facts, compute_mechanism, memory_mechanism
from rose.runtime.coserving.hooks.telemetry import RolloutTelemetry
from rose.runtime.coserving.kv.activation import Activation, SavedMemory
from rose.runtime.coserving.kv.memory import KvGuard, KvPages, PoolMemory
from rose.runtime.coserving.kv.remap import RemappedPages
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.coserving.questions import TAKEN, Ranks, Verb, parse_question
from rose.runtime.coserving.scheduler import SchedulerView, StepAbandonedError
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.coserving.weights.weights import WeightUpdater

logger = logging.getLogger(__name__)

_DEVICE_POLL_S = 0.001
_CLIENT_KEY = "_rose_client_key"


class RolloutPlugin:
    """The plugin in one scheduler process. A failure of the plugin ends the engine."""

    def __init__(self, scheduler: Any, settings: PluginSettings) -> None:
        from sglang.srt.runtime_context import get_parallel

        assert settings.page is not None, "a rollout engine is told of its page"
        assert settings.staging is not None, "and of where its weights come from"
        parallel = get_parallel()
        _check_parallel(parallel, settings.gated)
        if settings.gated and scheduler.enable_overlap:
            raise RuntimeError(
                "a rollout engine that shares its device runs with --disable-overlap-schedule: a step that was "
                "launched ahead cannot be held back"
            )
        self._scheduler = scheduler
        self.view = SchedulerView(scheduler)
        self.page = _page(settings, parallel.tp_rank + parallel.tp_size * parallel.pp_rank)
        self.telemetry = RolloutTelemetry(self.view, self.page)
        self.gate: RolloutGate | None = None
        self.guard: KvGuard | None = None
        self._pages: PoolMemory | None = None
        self.activation: Activation | None = None
        model_runner = scheduler.tp_worker.model_runner
        if settings.gated:
            layers = len(layers_of(model_runner.model))
            self._pages = RemappedPages.of(scheduler) or KvPages.of_cpu(scheduler)
            if (memory := self._pages or SavedMemory.of_gpu(scheduler)) is not None:
                self.activation = Activation(self.page, memory, lambda: self.weights.busy)
            self.guard = KvGuard(self.page, self.view, self._pages, self.activation)
            self.gate = RolloutGate(
                self.page,
                self.view,
                self.telemetry,
                self.guard,
                chunk_tokens=int(scheduler.chunked_prefill_size or 512),
                set_chunk_tokens=partial(setattr, scheduler, "chunked_prefill_size"),
                layers=layers,
                run_ahead=None if str(scheduler.device) == "cpu" else RunAhead(),
                on_preemptible=self._describe,
                host_cores=settings.host_cores,
            )
            self.view.own_compiled()
            logger.info("ROSE gates this engine: %d layers yield to serving", layers)
        self.weights = WeightUpdater(
            scheduler,
            model_runner,
            self.page,
            settings.staging,
            Ranks.of_engine(),
            wait_for_device=self._wait_for_device if settings.gated else lambda: None,
            host_cores=settings.host_cores,
            record_span=self.telemetry.synced,
        )
        self._began: dict[int, int] = {}
        self._compute = compute_facts(scheduler, gated=settings.gated)
        self._describe()

    def _wait_for_device(self) -> None:
        """Wait until serving does not want the device. This needs no lease, because syncs also work without a lease."""
        while self.page.serving_wants() and self.page.serving_works():
            time.sleep(_DEVICE_POLL_S)

    def _describe(self) -> None:
        arguments = self._scheduler.server_args
        preemptible = bool(self.page.get(Party.ROLLOUT, Field.PREEMPTIBLE))
        describe(
            self.page.path,
            Attachment(
                role="rollout",
                pid=os.getpid(),
                model=str(arguments.served_model_name or arguments.model_path),
                kv_tokens=self.view.kv_tokens_total,
                compute_mechanism=compute_mechanism(**self._compute, preemptible=preemptible),
                memory_mechanism=memory_mechanism(
                    pool=None if self._pages is None else self._pages.mechanism, leased=self.activation is not None
                ),
            ),
        )

    def answer(self) -> None:
        self.view.queue_compiled()
        for request in list(self.view.waiting):
            if (question := parse_question(str(request.rid))) is None:
                continue
            verb, about = question
            if verb == "end":
                self.view.end_ids([about])
                refused = None
            else:
                refused = self._ask_weights(verb, int(about))
            self.view.end([request], refused or TAKEN)

    def _ask_weights(self, verb: Verb, version: int) -> str | None:
        if self.activation is not None and not self.activation.weights_in:
            if verb == "audit":
                return "no audit now: the weights are not on the device"
            if (refused := self.activation.bring_weights()) is not None:
                return refused
        return self.weights.ask(verb, version)

    def begin(self, _batch: Any) -> None:
        number = self.view.steps + 1
        self._began[number] = monotonic_ns()
        if self.gate is not None:
            self.gate.step_begins()
        self.telemetry.begin(number)

    def end(self, batch: Any) -> None:
        number = int(batch.forward_iter)
        if (began := self._began.pop(number, None)) is None:
            return
        if self.gate is not None:
            self.gate.step_ended(began)
        self.telemetry.end(number, batch)
        self.telemetry.say()

    def abandon(self, batch: Any, why: StepAbandonedError) -> None:
        number = int(batch.forward_iter)
        self._began.pop(number, None)
        self.telemetry.forget(number)
        pressed = self.guard is not None and self.guard.pressed_since_ns > 0
        requests, tokens = self.view.abandon(batch, end=not pressed)
        logger.info("ROSE gave up a step (%s): %d requests with %d tokens continue elsewhere", why, requests, tokens)
        self.telemetry.say()

    def key_by_weights(self, request: Any) -> None:
        """Set the request's key in the prefix cache, so that the request finds no entries that other weights made."""
        if not hasattr(request, _CLIENT_KEY):
            setattr(request, _CLIENT_KEY, request.extra_key)
        request.extra_key = cache_key(getattr(request, _CLIENT_KEY), self.weights.version, self.weights.swaps)


def cache_key(client: str | None, version: int | None, swaps: int) -> str | None:
    """Return a request's key in the prefix cache. The key changes with each swap of the weights. It ends with `client`,
    the key that the client sent, because SGLang looks at the end for the name of a LoRA adapter."""
    return None if swaps == 0 and not client else f"rose-{swaps}-v{version}|{client or ''}"


def _check_parallel(parallel: Any, gated: bool) -> None:
    if parallel.tp_size != 1 and gated:
        raise RuntimeError(
            f"a rollout engine that shares its device runs with --tp-size 1, not {parallel.tp_size}: "
            "ranks that wait by their own clocks would diverge"
        )
    if (parallel.pp_size, parallel.dp_size) != (1, 1):
        raise RuntimeError(
            f"a rollout engine runs with tensor parallelism alone, not with --pp-size {parallel.pp_size} and "
            f"--dp-size {parallel.dp_size}: its weights could not be brought to a new version"
        )


def _page(settings: PluginSettings, rank: int) -> ArbiterPage:
    """Return the device's page for rank 0, or a private page for another rank."""
    assert settings.page is not None, "checked before"
    if rank == 0:
        return ArbiterPage.attach(settings.page, Party.ROLLOUT)
    page = ArbiterPage.create(settings.page.with_name(f"{settings.page.name}-{settings.role}-rank-{rank}"))
    page.take(Party.ROLLOUT)
    return page
