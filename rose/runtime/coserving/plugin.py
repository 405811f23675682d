"""The plugin inside SGLang, found through SGLang's own entry point `sglang.srt.plugins`.

It does nothing in a server that ROSE did not start. In an engine of ROSE it hooks five methods of the scheduler: the
arrival of requests, the start and the end of a step, the table of runtime settings (the way in for weights), and the
moment a request is matched against the prefix cache.
"""

from __future__ import annotations

import logging
from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.gate import RolloutGate, add_layer_hooks
from rose.runtime.coserving.page import ArbiterPage, Party, Span
from rose.runtime.coserving.ranks import Ranks
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.coserving.telemetry import EngineTelemetry
from rose.runtime.coserving.weights import WeightUpdater

logger = logging.getLogger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"

TARGETS = (
    f"{_SCHEDULER}.ingest_requests",
    f"{_SCHEDULER}.run_batch",
    f"{_SCHEDULER}.process_batch_result",
    f"{_STATE}._update_handlers",
    "sglang.srt.managers.schedule_batch.Req.init_next_round_input",
)

#: What a request's client gave as `extra_key`, kept on the request itself.
_CLIENT_KEY = "_rose_client_key"


class HooksMissingError(Exception):
    """This SGLang does not have the methods the plugin hooks; the message says which."""


class Executor:
    """What the plugin keeps for one scheduler process."""

    def __init__(self, scheduler: Any, settings: PluginSettings) -> None:
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        if parallel.tp_size != 1 and settings.gated:
            raise RuntimeError(
                f"a rollout engine that shares its device runs with --tp-size 1, not {parallel.tp_size}: "
                "ranks that gate by their own clocks would diverge"
            )
        if (parallel.pp_size, parallel.dp_size) != (1, 1) and settings.role == "rollout":
            raise RuntimeError(
                f"a rollout engine runs with tensor parallelism alone, not with --pp-size {parallel.pp_size} and "
                f"--dp-size {parallel.dp_size}: its weights could not be brought to a new version"
            )
        party = Party.SERVING if settings.role == "serving" else Party.ROLLOUT
        kind = Span.SERVING if settings.role == "serving" else Span.ROLLOUT
        self.page = _page(settings, party, parallel.tp_rank + parallel.tp_size * parallel.pp_rank)
        self.telemetry = EngineTelemetry(scheduler, self.page, party, kind)
        self.gate: RolloutGate | None = None
        model_runner = scheduler.tp_worker.model_runner
        if settings.gated:
            self.gate = RolloutGate(self.page, self.telemetry, int(scheduler.chunked_prefill_size or 512))
            layers = add_layer_hooks(model_runner.model, self.gate)
            logger.info("ROSE gates this engine: %d layers yield to serving", layers)
        self.weights = WeightUpdater(
            scheduler, model_runner, self.page, party, settings.staging, Ranks.of_engine(), UpdateRejected
        )
        self._began: dict[int, int] = {}

    def begin(self, batch: Any) -> None:
        now = monotonic_ns()
        self._began[id(batch)] = now
        self.telemetry.begin_step(now)

    def end(self, batch: Any) -> None:
        began = self._began.pop(id(batch), None)
        if began is None:
            return
        self.telemetry.end_step(batch, began)
        if self.gate is not None:
            self.gate.step_ended(began)

    def key_by_weights(self, req: Any) -> None:
        """Have the prefix cache tell this request's entries from those of other weights, whatever its client says.

        A request that runs across a sync goes on with the keys and values it has; those stay under the weights that
        it was admitted with, which nothing asks for any more. One that has to start again starts under the new ones.
        """
        if not hasattr(req, _CLIENT_KEY):
            setattr(req, _CLIENT_KEY, req.extra_key)
        req.extra_key = cache_key(getattr(req, _CLIENT_KEY), self.weights.version, self.weights.swaps)


def cache_key(client: str | None, version: int | None, swaps: int) -> str | None:
    """What the prefix cache files a request under: no two of these are the same for other `swaps` or another `client`.

    None, as without ROSE, for an engine that nothing was swapped into and a client that gives no key. The client's
    comes last: SGLang looks for a LoRA adapter at the end of it.
    """
    return None if swaps == 0 and not client else f"rose-{swaps}-v{version}|{client or ''}"


def _page(settings: PluginSettings, party: Party, rank: int) -> ArbiterPage:
    """The device's page for rank 0; the others do the same work at the same time, and keep their own account of it."""
    if rank == 0:
        return ArbiterPage.attach(settings.page, party)
    return ArbiterPage.create(settings.page.with_name(f"{settings.page.name}-{settings.role}-rank-{rank}"))


_executor: Executor | None = None


def _executor_of(scheduler: Any) -> Executor:
    global _executor
    if _executor is None:
        settings = PluginSettings.from_environment()
        assert settings is not None, "hooks are registered only where the settings exist"
        _executor = Executor(scheduler, settings)
    return _executor


def _ingest_requests(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    executor = _executor_of(scheduler)
    received = original(scheduler, *args, **kwargs)
    if received:
        executor.telemetry.publish()
    if executor.gate is not None:
        executor.gate.wait_for_admission(
            engine_paused=lambda: bool(scheduler._engine_paused),
            serve_control=lambda: original(scheduler, *args, **kwargs),
        )
    return received


def _run_batch(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    executor = _executor_of(scheduler)
    executor.begin(batch)
    return original(scheduler, batch, *args, **kwargs)


def _process_batch_result(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(scheduler, batch, *args, **kwargs)
    _executor_of(scheduler).end(batch)
    return result


def _update_handlers(handlers: Any, controller: Any) -> Any:
    return {**handlers, **_executor_of(controller.scheduler).weights.handlers()}


def _init_next_round_input(original: Any, req: Any, tree_cache: Any = None, *args: Any, **kwargs: Any) -> Any:
    # Without a tree nothing is matched: the request is in the middle of a chunked prefill.
    if tree_cache is not None and _executor is not None:
        _executor.key_by_weights(req)
    return original(req, tree_cache, *args, **kwargs)


def register() -> None:
    """The entry point: called by SGLang in its main, scheduler and detokenizer processes."""
    if PluginSettings.from_environment() is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGETS[0], _ingest_requests, HookType.AROUND)
    HookRegistry.register(TARGETS[1], _run_batch, HookType.AROUND)
    HookRegistry.register(TARGETS[2], _process_batch_result, HookType.AROUND)
    HookRegistry.register(TARGETS[3], _update_handlers, HookType.AFTER)
    HookRegistry.register(TARGETS[4], _init_next_round_input, HookType.AROUND)


def require_hooks() -> None:
    """Refuse to go on with a hook missing: SGLang only logs a hook that it could not apply.

    Raises HooksMissingError naming the methods and the version of SGLang.
    """
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [target for target in TARGETS if target not in HookRegistry._patched]
    if missing:
        raise HooksMissingError(
            f"SGLang {sglang.__version__} did not accept ROSE's hooks on {', '.join(missing)}. "
            "Install sglang 0.5.23, the version this was tested with, and see that the package "
            "rose-serving is installed in the same environment (its entry point is how SGLang finds the plugin)."
        )
