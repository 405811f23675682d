"""The plugin inside SGLang, found through SGLang's own entry point `sglang.srt.plugins`.

It does nothing in a server that ROSE did not start. In an engine of ROSE it hooks four methods of the scheduler:
the arrival of requests, the start and the end of a step, and the table of runtime settings (the way in for weights).
"""

from __future__ import annotations

import logging
from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.gate import RolloutGate, add_layer_hooks
from rose.runtime.coserving.page import ArbiterPage, Party, Span
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
)


class HooksMissingError(Exception):
    """This SGLang does not have the methods the plugin hooks; the message says which."""


class Executor:
    """What the plugin keeps for one scheduler process."""

    def __init__(self, scheduler: Any, settings: PluginSettings) -> None:
        from sglang.srt.runtime_context import get_parallel

        tp_size = get_parallel().tp_size
        if tp_size != 1 and settings.gated:
            raise RuntimeError(
                f"a rollout engine that shares its device runs with --tp-size 1, not {tp_size}: "
                "ranks that gate by their own clocks would diverge"
            )
        party = Party.SERVING if settings.role == "serving" else Party.ROLLOUT
        kind = Span.SERVING if settings.role == "serving" else Span.ROLLOUT
        self.page = ArbiterPage.attach(settings.page, party)
        self.telemetry = EngineTelemetry(scheduler, self.page, party, kind)
        self.gate: RolloutGate | None = None
        model_runner = scheduler.tp_worker.model_runner
        if settings.gated:
            self.gate = RolloutGate(self.page, self.telemetry, int(scheduler.chunked_prefill_size or 512))
            layers = add_layer_hooks(model_runner.model, self.gate)
            logger.info("ROSE gates this engine: %d layers yield to serving", layers)
        self.weights = WeightUpdater(scheduler, model_runner, self.page, party, settings.staging)
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


def register() -> None:
    """The entry point: called by SGLang in its main, scheduler and detokenizer processes."""
    if PluginSettings.from_environment() is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGETS[0], _ingest_requests, HookType.AROUND)
    HookRegistry.register(TARGETS[1], _run_batch, HookType.AROUND)
    HookRegistry.register(TARGETS[2], _process_batch_result, HookType.AROUND)
    HookRegistry.register(TARGETS[3], _update_handlers, HookType.AFTER)


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
