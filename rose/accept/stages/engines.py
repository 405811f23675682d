"""Tests two SGLang engines with a random Llama of 8e9 parameters: latency, use of idle time, weight sync, and kills."""

from __future__ import annotations

import importlib.util
import json
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from rose.accept.coserve import traffic
from rose.accept.coserve.host import ROLLOUT, SERVING, Cores, Gpu, Host, opened
from rose.accept.coserve.keeper import IDLE, SOLO, Keeper
from rose.accept.coserve.rounds import (
    LATENCIES,
    Round,
    Scene,
    budgets_of,
    harvest_share,
    order,
    over_budget,
    quantile,
    round_figures,
    serving_command,
    values_ms,
)
from rose.accept.coserve.worker import Worker
from rose.accept.stage import Scope, SkippedError, StageReport
from rose.accept.stages import engine_models
from rose.clock import monotonic_ns
from rose.events import Request
from rose.runtime.agent.weights.sync import EngineSync, Target
from rose.runtime.coserving.attachment import described
from rose.runtime.coserving.page import Party, Span
from rose.runtime.models.policy_model import PolicyShape
from rose.runtime.platform import gpu
from rose.runtime.policy.slack import Budgets
from rose.runtime.traffic import trace as traces
from rose.terminal import echo
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.server import StoreServer

T = TypeVar("T")
_GPU_TOKENS, _GRAPH_BATCH_MAX, _TURNS = 32768, 16, 16
_GPU_LENGTHS_MAX = (1024, 32)
_QUICK_LAYERS, _SYNC_LAYERS = 8, 4  # In a quick run; in the sync's engine, which gets whole versions.
_ENGINE_BYTES = 4 << 30
_BUSY_TARGET = 0.42
_RATE_PER_S, _GPU_RATE_PER_S, _RATE_MAX_PER_S = 1.5, 6.0, 30.0
_BUDGET_FACTOR = 3
_UNLIMITED = Budgets(1 << 60, 1 << 60)
_MARGIN_S = 6.0
_ROUND_EXTRA_S = 2.5
#: (latency, quantile, target ratio, whether it is a tail)
_RATIOS = [(name, *ratio) for ratio in ((0.5, 1.05, False), (0.99, 1.07, True)) for name in LATENCIES]
#: Expected times of later parts; one engine starts in this share of two engines' time.
_KILL_S, _RESTART_S, _RESTART_SHARE, _SYNC_S = 6.0, 22.0, 0.65, 16.0
_LATER_S = 2 * _KILL_S + _RESTART_S + _SYNC_S
_BEFORE_S, _AFTER_S = 2.0, 2.0
_GONE_MAX_S = 10.0  # The kernel releases a dead process's page section as the process ends: slow with GPU memory.
_KILL_RAMP_S = 1.0
_KILL_SEED = 7000
_ANCHOR, _DELTA = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lengths:
    warm_up_s: float
    calibration_s: float
    round_s: float
    rounds_max: int

    @property
    def rounds_s(self) -> float:
        return self.warm_up_s + self.calibration_s + 2 * self.round_s + 4 * _ROUND_EXTRA_S


_FULL = _Lengths(warm_up_s=4, calibration_s=5, round_s=6, rounds_max=3)
_QUICK = _Lengths(warm_up_s=3, calibration_s=4, round_s=4, rounds_max=2)
_CORES = _Lengths(warm_up_s=2, calibration_s=3, round_s=4, rounds_max=1)


def measure(scope: Scope, report: StageReport) -> None:
    with opened_parts(scope, report) as parts:
        small = engine_models.layers(parts.shape, _SYNC_LAYERS)
        lengths = _FULL if not scope.quick else _CORES if scope.gpu is None else _QUICK
        versions = background(partial(publish_versions, small, scope.folder / "store"))
        restart_s = max(_RESTART_S, _RESTART_SHARE * parts.start())
        parts.run("hooks", 0, parts.check_hooks)
        with suppress(Exception):  # The sync reports the failure. Rounds are not measured beside it.
            versions.result(15.0)
        parts.run("rounds", lengths.rounds_s, partial(parts.play_rounds, lengths))
        parts.run("rollout engine killed", _KILL_S, partial(parts.fault, kill_rollout, 7))
        if parts.run("rollout engine started anew", restart_s, partial(parts.restart, scope.folder / "small", small)):
            parts.run("serving engine killed", _KILL_S, partial(parts.fault, kill_serving, 8))
            bring = partial(sync, parts.host, versions, report)
            parts.run("sync", _SYNC_S, lambda: background(bring).result(parts.left_s))


@contextmanager
def opened_parts(scope: Scope, report: StageReport) -> Iterator[Parts]:
    """Yield the objects that all parts of a stage use. The engines are not started yet. Raises SkippedError."""
    until_s = time.monotonic() + scope.seconds - _MARGIN_S
    if importlib.util.find_spec("sglang") is None:
        raise SkippedError(
            "SGLang is not installed: install sglang 0.5.23 beside ROSE, or copy here the result of `make gpu-kit`"
        )
    if scope.gpu is not None and not gpu.has_kernels() and not gpu.native_kernels():
        raise SkippedError(
            f"SGLang's kernels are not installed: install the package sglang-kernel, or set {gpu.NATIVE_KERNELS}=1 to "
            "prove the mechanisms with plain torch and Triton"
        )
    shape = engine_models.SMALL if scope.gpu is None else _shape_that_fits(scope)
    models = {role: engine_models.write(scope.folder / role, shape) for role in (SERVING, ROLLOUT)}
    report.fact("layers", shape.num_hidden_layers)
    report.fact("parameters", engine_models.parameter_count(shape))
    device = None if scope.gpu is None else Gpu(scope.gpu, tokens=_GPU_TOKENS, graph_batch_max=_GRAPH_BATCH_MAX)
    with ExitStack() as stack:
        host = stack.enter_context(opened(scope.folder, Cores.available(device), device, models))
        stack.callback(_end, host, report)
        yield Parts(report, host, stack.enter_context(Worker("serving")), shape, until_s)


def _shape_that_fits(scope: Scope) -> PolicyShape:
    import torch

    free, _ = torch.cuda.mem_get_info(scope.gpu)
    large = engine_models.LARGE
    for count in (_QUICK_LAYERS, _SYNC_LAYERS) if scope.quick else (large.num_hidden_layers, 16, 8, 4):
        shape = engine_models.layers(large, count)
        pool = 4 * shape.num_key_value_heads * shape.head_dim * count * _GPU_TOKENS
        needed = 2 * (2 * engine_models.parameter_count(shape) + pool + _ENGINE_BYTES)
        if needed < free * 0.85:
            return shape
    raise SkippedError(
        f"GPU {scope.gpu} has only {free / 2**30:.0f} GiB free for two engines: end other programs there"
    )


class Parts:
    def __init__(self, report: StageReport, host: Host, serving: Worker, shape: PolicyShape, until_s: float) -> None:
        on_cores = host.gpu is None
        lengths_max = traffic.CORE_TOKENS_MAX if on_cores else _GPU_LENGTHS_MAX
        self._report, self.host, self._serving, self.shape = report, host, serving, shape
        self._stage = report.benchmark.rpartition(".")[2]
        self._until_s = until_s
        self._trace = traffic.scaled(traces.read(traffic.SAMPLE), *lengths_max)
        self._prompt_tokens_max = min(int(self._trace.prompt_tokens.max()), lengths_max[0])
        self._rate_per_s = _RATE_PER_S if on_cores else _GPU_RATE_PER_S
        self._budgets = _UNLIMITED

    @property
    def left_s(self) -> float:
        return self._until_s - time.monotonic()

    def run(self, name: str, needs_s: float, act: Callable[[], object]) -> bool:
        report = self._report
        if self.left_s < needs_s:
            report.fact(name, f"left out: it needs {needs_s:.0f} s, and {max(0.0, self.left_s):.0f} s were left")
            return False
        began_s = time.monotonic()
        try:
            act()
        except Exception as error:
            traceback.print_exc()
            report.fact(f"{name}, failure", f"{type(error).__name__}: {error}")
            report.claim(f"{self._stage}: {name} could be measured", 0, "", 1, "higher")
            return False
        report.fact(f"{name}, seconds", round(time.monotonic() - began_s, 1))
        return True

    def start(self) -> float:
        began_s = time.monotonic()
        for name in (SERVING, ROLLOUT):
            self.host.launch(name)
        for name in (SERVING, ROLLOUT):
            self.host.wait_ready(name)
            self._report.fact(f"{name} engine started, seconds", round(time.monotonic() - began_s, 1))
        took_s = time.monotonic() - began_s
        self._report.claim(f"{self._stage}: both engines started", took_s, "s", 90, "lower")
        return took_s

    def check_hooks(self) -> None:
        accepted = 0
        roles: tuple[Literal["serving", "rollout"], ...] = ("serving", "rollout")
        for role in roles:
            if (seen := described(self.host.page.path, role)) is None or seen.refused:
                self._report.fact(f"{role} hooks", "missing" if seen is None else seen.refused)
                continue
            accepted += role == SERVING or seen.compute_mechanism.endswith("layer-yield")
            self._report.fact(f"{role} mechanisms", f"{seen.compute_mechanism}, {seen.memory_mechanism}")
        self._report.claim("engines: hooks accepted", accepted, "engines", 2, "higher")

    def play_rounds(self, lengths: _Lengths) -> None:
        report = self._report
        played: dict[str, list[Round]] = {SOLO: [], IDLE: []}
        with Worker("rollout") as rollout:
            self._play(rollout, IDLE, -1, 20, lengths.warm_up_s)  # In the first play both engines compile kernels.
            alone = self._play(rollout, SOLO, -1, 21, lengths.calibration_s)
            busy = alone.device["serving_ns"] / alone.device["length_ns"]
            self._budgets = budgets_of(alone, _BUDGET_FACTOR)
            factor = min(3.0, max(0.3, _BUSY_TARGET / max(busy, 0.01)))
            self._rate_per_s = min(_RATE_MAX_PER_S, self._rate_per_s * factor)
            report.fact("serving alone busy, share", round(busy, 3))
            report.fact("serving requests a second", round(self._rate_per_s, 2))
            for number in range(lengths.rounds_max):
                if number and self.left_s < 2 * (lengths.round_s + _ROUND_EXTRA_S) + _LATER_S:
                    left_out = lengths.rounds_max - number
                    report.fact("rounds left out", f"{left_out} of {lengths.rounds_max}: too little time")
                    break
                for policy in order((SOLO, IDLE), number):
                    one = self._play(rollout, policy, number, number, lengths.round_s)
                    played[policy].append(one)
                    echo(json.dumps(round_figures(one, self._budgets)), err=True)
        every = [one for rounds in played.values() for one in rounds]
        report.detail["rounds"] = [round_figures(one, self._budgets) for one in every]
        claim_rounds(report, played, self._budgets)

    def fault(self, act: Callable[[Scene, StageReport, traffic.Arrivals], None], number: int) -> None:
        with Worker("rollout") as rollout:
            act(self.scene(rollout), self._report, self._arrivals(number, seconds=5.0))

    def restart(self, folder: Path, small: PolicyShape) -> None:
        host, began_s = self.host, time.monotonic()
        host.stop([ROLLOUT])
        host.models = {**host.models, ROLLOUT: engine_models.write(folder, small)}
        host.launch(ROLLOUT)
        host.wait_ready(ROLLOUT)
        self._report.fact("rollout engine beside a serving one, seconds", round(time.monotonic() - began_s, 1))

    def _play(self, rollout: Worker, policy: str, number: int, window: int, seconds: float) -> Round:
        seed = 16 * window + (policy == IDLE)
        return self.scene(rollout).play(policy, number, self._arrivals(window, seconds), seconds, seed)

    def scene(self, rollout: Worker) -> Scene:
        return Scene(
            host=self.host,
            serving=self._serving,
            rollout=rollout,
            turns=_TURNS,
            budgets=self._budgets,
            max_prompt_tokens=self._prompt_tokens_max,
        )

    def _arrivals(self, number: int, seconds: float) -> traffic.Arrivals:
        return traffic.window(self._trace, number, seconds, self._rate_per_s)


def claim_rounds(report: StageReport, played: dict[str, list[Round]], budgets: Budgets) -> None:
    solo, rose = played[SOLO], played[IDLE]
    devices = [one.device for one in (*solo, *rose)]
    sums_ns = [part["serving_ns"] + part["rollout_ns"] + part["headroom_ns"] + part["idle_ns"] for part in devices]
    error_ns = max(abs(part["length_ns"] - sum_ns) for part, sum_ns in zip(devices, sums_ns, strict=True))
    report.claim("engines: slice sum error", error_ns, "ns", 0, "lower")
    over = [sum(over_budget(one, budgets) for one in rounds) for rounds in (rose, solo)]
    report.claim("engines: requests over budget, rose less solo", over[0] - over[1], "requests", 0, "lower")
    shares = [harvest_share(alone.device, lent.device) for alone, lent in zip(solo, rose, strict=True)]
    report.claim("engines: idle time harvested", statistics.median_high(shares), "share", 0.8, "higher")
    report.fact("rollout tokens a second", [round(one.tokens_per_s) for one in rose])
    for what, share, target, tail in _RATIOS:
        # Over all rounds: one round has too few requests for a tail.
        lent, alone = (quantile(values_ms(rounds, LATENCIES[what]), share) for rounds in (rose, solo))
        name = f"{what} p{share * 100:g}, rose / solo"
        if tail and report.quick:
            report.fact(name, round(lent / alone, 3))
        else:
            report.claim(f"engines: {name}", lent / alone, "x", target, "lower")


def _end(host: Host, report: StageReport) -> None:
    for engine in host.engines.values():
        engine.kill()
    logs = sorted(Path(host.folder).glob("*.log*"))
    report.detail["logs"] = {path.name: path.read_text(errors="replace").splitlines()[-25:] for path in logs}
    report.save()


def kill_rollout(scene: Scene, report: StageReport, arrivals: traffic.Arrivals) -> None:
    """Kill the rollout engine during its steps. No serving request may fail."""
    with _killed(scene, ROLLOUT, arrivals) as (keeper, killed_ns):
        served: list[Request] = scene.serving.hear()["requests"]
    steps = sum(span.kind is Span.ROLLOUT and span.start_ns < killed_ns for span in keeper.spans)
    failed = [request.reason for request in served if request.outcome != "completed"]
    report.fact("rollout killed: rollout steps before it", steps)
    report.detail["rollout killed: failures"] = failed
    report.claim("engines: serving requests failed, rollout engine killed", len(failed), "requests", 0, "lower")
    report.claim("engines: serving requests sent, rollout engine killed", len(served), "requests", 1, "higher")


def kill_serving(scene: Scene, report: StageReport, arrivals: traffic.Arrivals) -> None:
    """Kill the serving engine under traffic. Once the page says that serving is gone, no rollout step may begin."""
    host = scene.host
    with _killed(scene, SERVING, arrivals) as (keeper, killed_ns):
        deadline_s = time.monotonic() + _GONE_MAX_S
        while host.page.alive(Party.SERVING) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        gone_ns = monotonic_ns()
        time.sleep(_AFTER_S)
        alive = host.engines[ROLLOUT].alive
    starts = [span.start_ns for span in keeper.spans if span.kind is Span.ROLLOUT]
    report.fact("serving killed: rollout steps before it", sum(start < killed_ns for start in starts))
    report.fact("serving killed: until the page says so, ms", round((gone_ns - killed_ns) / 1e6, 1))
    late = sum(start > gone_ns + 100_000_000 for start in starts)  # A step admitted just before may begin.
    report.claim("engines: rollout steps begun without serving", late, "steps", 0, "lower")
    report.claim("engines: rollout engine lives on without serving", int(alive), "", 1, "higher")


@contextmanager
def _killed(scene: Scene, name: str, arrivals: traffic.Arrivals) -> Iterator[tuple[Keeper, int]]:
    """Kill an engine under load. Yield the keeper and the time of the kill (monotonic ns)."""
    engines, keeper = scene.host.engines, scene.keeper(IDLE)
    keeper.start()
    try:
        scene.rollout.tell(url=engines[ROLLOUT].url, turns=scene.turns, seed=_KILL_SEED)
        time.sleep(_KILL_RAMP_S)
        scene.serving.tell(**serving_command(engines[SERVING].url, arrivals, _KILL_SEED))
        scene.serving.hear()
        time.sleep(_BEFORE_S)
        killed_ns = monotonic_ns()
        engines[name].kill()
        yield keeper, killed_ns
    finally:
        scene.rollout.close()
        keeper.stop()


def publish_versions(shape: PolicyShape, folder: Path) -> tuple[VersionStore, float]:
    began_s, store = time.monotonic(), VersionStore(folder)
    weights = engine_models.random_weights(shape)
    store.publish(_ANCHOR, weights)
    store.publish(_DELTA, engine_models.changed(weights))
    return store, time.monotonic() - began_s


def sync(host: Host, versions: Future[tuple[VersionStore, float]], report: StageReport) -> None:
    store, took_s = versions.result(30.0)
    report.fact("sync: versions published, seconds", round(took_s, 1))
    engine = EngineSync(host.engines[ROLLOUT], host.staging(ROLLOUT), device_id="d0")
    acknowledged, pause_ms = 0, float("inf")
    with StoreServer(store) as server:
        for version in (_ANCHOR, _DELTA):
            event = engine.bring(Target("", version, server.url))
            report.detail[f"sync {version}"] = {
                name: part for name, part in asdict(event).items() if name != "event_id"
            }
            if not event.ok:
                raise RuntimeError(f"version {version}: {event.reason}")
            assert event.pause_ns is not None, "a version that was swapped in took a pause"
            pause_ms = event.pause_ns / 1e6
            acknowledged += engine.acknowledge() is None and engine.origin_knows
            report.fact(f"sync: pause of the {'anchor' if version == _ANCHOR else 'delta'}, ms", pause_ms)
    report.claim("engines: versions acknowledged", acknowledged, "", 2, "higher")
    report.claim("engines: sync pause, delta", pause_ms, "ms", 50.0, "lower")


def background(act: Callable[[], T]) -> Future[T]:
    """Run `act` in a daemon thread, so that it never delays the end of this process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
