"""The plugin inside SGLang (entry point `sglang.srt.plugins`). It hooks each scheduler, and only observes serving."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rose.runtime.coserving import continuation
from rose.runtime.coserving.attachment import STATE, EngineState
from rose.runtime.coserving.hooks.gate import add_layer_hooks, capture_in_layers
from rose.runtime.coserving.hooks.rollout import RolloutPlugin
from rose.runtime.coserving.hooks.serving import ATTACH, RELEASE, ServingPlugin, refusal
from rose.runtime.coserving.kv.remap import create_buffers, is_requested
from rose.runtime.coserving.scheduler import StepAbandonedError
from rose.runtime.coserving.settings import PluginSettings

logger = logging.getLogger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"

INGEST = f"{_SCHEDULER}.ingest_requests"
RUN = f"{_SCHEDULER}.run_batch"
PROCESS = f"{_SCHEDULER}.process_batch_result"
ABORT = f"{_SCHEDULER}.send_abort_output"
HANDLERS = f"{_STATE}._update_handlers"
READBACK = f"{_STATE}.get_internal_state"
NEW = f"{_SCHEDULER}._create_generation_req"
MATCH = "sglang.srt.managers.schedule_batch.Req.init_next_round_input"
PREFILL = "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend"
SPANS = "sglang.srt.managers.scheduler_components.output_streamer.compute_weight_version_spans"
ADDER = f"{_SCHEDULER}.get_prefill_adder_class"
CAPTURE = "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one"
LOAD = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
POOL = "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_buffers_normal"
STAMPS = "sglang.srt.observability.req_time_stats.APIServerReqTimeStats.__getstate__"

SERVING_TARGETS = (INGEST, RUN, PROCESS, HANDLERS)  # if one is missing, nothing is lent beside serving
#: If one of these is missing, ROSE does not start an engine.
TARGETS = (*SERVING_TARGETS, NEW, MATCH, PREFILL, SPANS, ADDER, CAPTURE, LOAD)

_ABANDONED = object()  # the result of a step that was given up


_plugin: RolloutPlugin | ServingPlugin | None = None


def _plugin_of(scheduler: Any) -> RolloutPlugin | ServingPlugin:
    global _plugin
    if _plugin is None:
        settings = PluginSettings.from_environment()
        assert settings is not None, "hooks are registered only where the plugin is not off"
        if settings.role == "rollout":
            _plugin = RolloutPlugin(scheduler, settings)
        else:
            try:
                refused = missing_hooks(SERVING_TARGETS) or refusal()
            except Exception as error:
                refused = f"cannot read this SGLang's parallelism: {type(error).__name__}: {error}"
            _plugin = ServingPlugin(scheduler, settings.page, refused)
    return _plugin


def _ingest_requests(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    plugin = _plugin_of(scheduler)
    if isinstance(plugin, ServingPlugin):
        plugin.receiving()
        received = original(scheduler, *args, **kwargs)
        plugin.received()
        return received
    received = original(scheduler, *args, **kwargs)
    plugin.answer()
    if plugin.gate is not None:

        def serve_control() -> None:
            original(scheduler, *args, **kwargs)
            plugin.answer()

        plugin.gate.before_step(lambda: bool(scheduler._engine_paused), serve_control)
    return received


def _run_batch(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    plugin = _plugin_of(scheduler)
    plugin.begin(batch)
    try:
        result = original(scheduler, batch, *args, **kwargs)
    except StepAbandonedError as why:
        assert isinstance(plugin, RolloutPlugin), "only a gated engine's layers raise it"
        plugin.abandon(batch, why)
        return _ABANDONED
    if isinstance(plugin, ServingPlugin):
        plugin.launched(batch)
    return result


def _process_batch_result(original: Any, scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
    if result is _ABANDONED:
        return None
    answer = original(scheduler, batch, result, *args, **kwargs)
    _plugin_of(scheduler).end(batch)
    return answer


def _send_abort_output(_answer: Any, _scheduler: Any, abort_req: Any, req: Any) -> None:
    if isinstance(_plugin, ServingPlugin):
        _plugin.aborted(req, abort_req)


class _Attach:
    def __init__(self, plugin: ServingPlugin, rejected: type[Exception]) -> None:
        self._plugin, self._rejected = plugin, rejected

    def validate(self, key: str, value: Any) -> None:
        # Any client may send this. Any other error would end the scheduler, and with it serving.
        if not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())) or value < RELEASE:
            raise self._rejected(f"{key} must be a page's number, or negative to release the page, not {value!r}")

    def apply(self, _key: str, value: Any) -> None:
        self._plugin.attach(int(value))


def _update_handlers(handlers: Any, controller: Any) -> Any:
    plugin = _plugin_of(controller.scheduler)
    if isinstance(plugin, RolloutPlugin):
        return handlers
    from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

    return {**handlers, ATTACH: _Attach(plugin, UpdateRejected)}


def _internal_state(answer: Any, controller: Any, *_args: Any) -> Any:
    try:
        plugin = _plugin_of(controller.scheduler)
        state = plugin.state if isinstance(plugin, ServingPlugin) else EngineState(role="rollout", pid=os.getpid())
        answer.internal_state[STATE] = asdict(state)
    except Exception:
        logger.exception("ROSE cannot report its state; serving continues")
    return answer


def _init_next_round_input(original: Any, req: Any, tree_cache: Any = None, *args: Any, **kwargs: Any) -> Any:
    # Without a tree nothing is matched: the request is in the middle of a chunked prefill.
    if tree_cache is not None and isinstance(_plugin, RolloutPlugin):
        _plugin.key_by_weights(req)
        continuation.before_prefill(req)
    return original(req, tree_cache, *args, **kwargs)


def _of_rollouts(hook: Callable[..., Any]) -> Callable[..., Any]:
    def only_there(result: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(result, *args, **kwargs) if isinstance(_plugin, RolloutPlugin) else None

    return only_there


def _prefill_adder_class(adder: Any, scheduler: Any) -> Any:
    plugin = _plugin_of(scheduler)
    if not isinstance(plugin, RolloutPlugin) or plugin.guard is None:
        return adder
    guard = plugin.guard

    class BudgetedAdder(adder):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.memory_budget.total_offset += guard.withheld_tokens
            self.memory_budget.current_offset += guard.withheld_tokens

    return BudgetedAdder


def _gated() -> bool:
    settings = PluginSettings.from_environment()
    return settings is not None and settings.role == "rollout" and settings.gated


def _load_model(answer: Any, runner: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Add the gate to the layers of an engine that shares its device, before SGLang captures graphs of them."""
    if _gated():
        if str(runner.device) == "cuda":
            from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import eager_on_graph

            add_layer_hooks(runner.model, eager_on_graph(_between_layers))  # It also runs in a captured graph.
        else:
            add_layer_hooks(runner.model, _between_layers, after_last=True)
    return answer


def _capture_one(original: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
    if not _gated():
        return original(backend, *args, **kwargs)
    return capture_in_layers(original, backend, *args, **kwargs)


def _between_layers(layers_left: int) -> None:
    if isinstance(_plugin, RolloutPlugin) and _plugin.gate is not None:
        _plugin.gate.between_layers(layers_left)


def _with_arrival(state: Any, stamps: Any) -> Any:
    return {**state, **{name: getattr(stamps, name, 0.0) for name in ("created_time", "api_server_dispatch_time")}}


def register() -> None:
    if PluginSettings.from_environment() is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(INGEST, _ingest_requests, HookType.AROUND)
    HookRegistry.register(RUN, _run_batch, HookType.AROUND)
    HookRegistry.register(PROCESS, _process_batch_result, HookType.AROUND)
    HookRegistry.register(ABORT, _send_abort_output, HookType.AFTER)
    HookRegistry.register(HANDLERS, _update_handlers, HookType.AFTER)
    HookRegistry.register(READBACK, _internal_state, HookType.AFTER)
    HookRegistry.register(MATCH, _init_next_round_input, HookType.AROUND)
    HookRegistry.register(NEW, _of_rollouts(continuation.continue_turn), HookType.AFTER)
    HookRegistry.register(PREFILL, _of_rollouts(continuation.count_penalties), HookType.AFTER)
    HookRegistry.register(SPANS, _of_rollouts(continuation.later_spans), HookType.AFTER)
    HookRegistry.register(ADDER, _prefill_adder_class, HookType.AFTER)
    HookRegistry.register(CAPTURE, _capture_one, HookType.AROUND)
    HookRegistry.register(LOAD, _load_model, HookType.AFTER)
    if is_requested() and _gated():  # If SGLang ignores it, the pool stays where it is and the ledger says so.
        HookRegistry.register(POOL, create_buffers, HookType.AROUND)
    HookRegistry.register(STAMPS, _with_arrival, HookType.AFTER)


def missing_hooks(targets: Sequence[str] = TARGETS) -> str | None:
    """Return a message that names the missing hooks, or None. SGLang itself only logs a missing hook."""
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [target for target in targets if target not in HookRegistry._patched]
    if not missing:
        return None
    return (
        f"SGLang {sglang.__version__} did not accept ROSE's hooks on {', '.join(missing)}: "
        "install sglang 0.5.23, the version that ROSE was tested with"
    )


def require_hooks() -> None:
    """Raise RuntimeError if a hook is missing."""
    if (missing := missing_hooks()) is not None:
        raise RuntimeError(
            f"{missing}. Check that the package rose-serving is installed in the same environment (its entry point "
            "is how SGLang finds the plugin)."
        )
