"""Two SGLang engines on the card: what lending costs serving there, what it harvests, a sync, and either one killed.

The model has the shape of a Llama with 8 billion parameters and random weights. The parts follow one another for as
long as there is time; what no longer fits is a fact that says so.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rose.accept.coserve import figures, traffic
from rose.accept.coserve.account import harvest_share
from rose.accept.coserve.host import ROLLOUT, SERVING, Cores, Gpu, Host, Models, opened
from rose.accept.coserve.policies import ROSE, SOLO
from rose.accept.coserve.rounds import Round, Scene, order
from rose.accept.coserve.worker import Worker
from rose.accept.engines import faults as engine_faults
from rose.accept.engines import models as engine_models
from rose.accept.engines import sync as engine_sync
from rose.accept.stage import Scope, SkippedError, StageReport
from rose.runtime.coserving.attach.attachment import described
from rose.runtime.engines import gpu
from rose.runtime.policy.slack import Budgets
from rose.runtime.traffic.trace import Trace
from rose.runtime.training.policy_model import PolicyShape
from rose.terminal import echo

_NAME = "engines"
_GPU_TOKENS, _GRAPH_BATCH_MAX, _TURNS = 32768, 16, 16
_GPU_LENGTHS_MAX = (1024, 32)
#: Layers in a quick run, and of the rollout engine that is brought to other weights: those are published in full.
_QUICK_LAYERS, _SYNC_LAYERS = 8, 4
#: Of an engine beside its weights and its pool: contexts, graphs, activations.
_ENGINE_BYTES = 4 << 30
_BUSY_WANTED = 0.42
_RATE_PER_S, _GPU_RATE_PER_S, _RATE_MAX_PER_S = 1.5, 6.0, 30.0
_BUDGET_FACTOR = 3
_UNLIMITED = Budgets(1 << 60, 1 << 60)
#: The stage is over this long before it would be stopped.
_MARGIN_S = 6.0
#: A round is longer than its traffic: the ramp before it, and the last answers.
_ROUND_EXTRA_S = 2.5
#: (latency, quantile, target of the ratio, whether it is about a tail)
_RATIOS = (
    ("TTFT", 0.5, 1.05, False),
    ("TPOT", 0.5, 1.05, False),
    ("TTFT", 0.99, 1.07, True),
    ("TPOT", 0.99, 1.07, True),
)
_PUBLISH_MAX_S = 15.0
_LOG_LINES = 25


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lengths:
    """Seconds of each play, how many rounds at most, and what the parts after the rounds are expected to take."""

    warm_up_s: float
    calibration_s: float
    round_s: float
    rounds_max: int
    kill_s: float = 6.0
    restart_s: float = 22.0
    #: Alone it starts in this share of what both took side by side.
    restart_share: float = 0.65
    sync_s: float = 16.0

    @property
    def rounds_s(self) -> float:
        """What the rounds take if one of each policy is played."""
        return self.warm_up_s + self.calibration_s + 2 * self.round_s + 4 * _ROUND_EXTRA_S

    @property
    def later_s(self) -> float:
        """What the parts after the rounds take."""
        return 2 * self.kill_s + self.restart_s + self.sync_s


_FULL = _Lengths(warm_up_s=4, calibration_s=5, round_s=6, rounds_max=3)
_QUICK = _Lengths(warm_up_s=3, calibration_s=4, round_s=4, rounds_max=2)
_CORES = _Lengths(warm_up_s=2, calibration_s=3, round_s=4, rounds_max=1)


@dataclass(slots=True)
class _Stage:
    """What the parts share."""

    scope: Scope
    report: StageReport
    host: Host
    serving: Worker
    trace: Trace
    lengths: _Lengths
    until: float
    prompt_tokens_max: int
    rate_per_s: float
    budgets: Budgets = _UNLIMITED
    played: dict[str, list[Round]] = field(default_factory=lambda: {SOLO: [], ROSE: []})

    @property
    def left_s(self) -> float:
        """Seconds for what is still to be measured."""
        return self.until - time.monotonic()

    def claim(self, name: str, value: float, unit: str, target: float, *, lower: bool = True) -> None:
        self.report.claim(f"{_NAME}: {name}", value, unit, target, "lower" if lower else "higher")

    def part(self, name: str, needs_s: float, act: Callable[[], object]) -> bool:
        """Do it if there is time; whether it was done. A failure is a claim that does not hold, and ends no other."""
        if self.left_s < needs_s:
            self.report.fact(name, f"left out: it needs {needs_s:.0f} s, and {max(0.0, self.left_s):.0f} s were left")
            return False
        began = time.monotonic()
        try:
            act()
        except Exception as error:
            traceback.print_exc()
            self.report.fact(f"{name}, failure", f"{type(error).__name__}: {error}")
            self.claim(f"{name} could be measured", 0, "", 1, lower=False)
            return False
        self.report.fact(f"{name}, seconds", round(time.monotonic() - began, 1))
        return True


def measure(scope: Scope, report: StageReport) -> None:
    """Raises SkippedError where engines cannot run."""
    until = time.monotonic() + scope.seconds - _MARGIN_S
    _require_engines(scope)
    shape, lengths = _shape(scope), _FULL if not scope.quick else _QUICK if scope.gpu is not None else _CORES
    small = engine_models.layers(shape, _SYNC_LAYERS)
    models = Models(*(engine_models.write(scope.folder / role, shape) for role in (SERVING, ROLLOUT)))
    report.fact("layers", shape.num_hidden_layers)
    report.fact("parameters", engine_models.parameter_count(shape))
    device = None if scope.gpu is None else Gpu(scope.gpu, tokens=_GPU_TOKENS, graph_batch_max=_GRAPH_BATCH_MAX)
    lengths_max = traffic.CORE_TOKENS_MAX if scope.gpu is None else _GPU_LENGTHS_MAX
    trace = traffic.load(traffic.SAMPLE, *lengths_max)
    with ExitStack() as stack:
        host = stack.enter_context(opened(scope.folder, Cores.available(device), device, models))
        stack.callback(_end, host, report)  # Before they would be asked to end, which takes them long.
        stage = _Stage(
            scope=scope,
            report=report,
            host=host,
            serving=stack.enter_context(Worker("serving")),
            trace=trace,
            lengths=lengths,
            until=until,
            prompt_tokens_max=min(int(trace.prompt_tokens.max()), lengths_max[0]),
            rate_per_s=_RATE_PER_S if scope.gpu is None else _GPU_RATE_PER_S,
        )
        versions = engine_sync.Versions(small, scope.folder / "store")
        restart_s = max(lengths.restart_s, lengths.restart_share * _start(stage))
        stage.part("hooks", 0, partial(_hooks, stage))
        with suppress(Exception):  # The sync says what went wrong. Rounds are not measured beside it.
            versions.wait(_PUBLISH_MAX_S)
        stage.part("rounds", lengths.rounds_s, partial(_rounds, stage))
        stage.part("rollout engine killed", lengths.kill_s, partial(_fault, stage, engine_faults.rollout_killed, 7))
        if stage.part("rollout engine started anew", restart_s, partial(_restart, stage, small)):
            stage.part("serving engine killed", lengths.kill_s, partial(_fault, stage, engine_faults.serving_killed, 8))
            sync = partial(engine_sync.measure, host, versions, stage.claim, report)
            stage.part("sync", lengths.sync_s, partial(_within, stage.left_s, sync))


def _require_engines(scope: Scope) -> None:
    if importlib.util.find_spec("sglang") is None:
        raise SkippedError(
            "SGLang is not installed: install sglang 0.5.23 beside ROSE, or carry what `make gpu-kit` gathers"
        )
    if scope.gpu is not None and not gpu.has_kernels() and not gpu.native_kernels():
        raise SkippedError(
            f"SGLang's kernels are not installed: install the package sglang-kernel, or set {gpu.NATIVE_KERNELS}=1 to "
            "prove the mechanisms with plain torch and Triton"
        )


def _shape(scope: Scope) -> PolicyShape:
    """As many layers as there is time and memory for, up to those of the model."""
    if scope.gpu is None:
        return engine_models.SMALL
    import torch

    free, _ = torch.cuda.mem_get_info(scope.gpu)
    large = engine_models.LARGE
    for count in (_QUICK_LAYERS, _SYNC_LAYERS) if scope.quick else (large.num_hidden_layers, 16, 8, 4):
        shape = engine_models.layers(large, count)
        pool = 4 * shape.num_key_value_heads * shape.head_dim * count * _GPU_TOKENS
        needed = 2 * (2 * engine_models.parameter_count(shape) + pool + _ENGINE_BYTES)
        if needed < free * 0.85:
            return shape
    raise SkippedError(f"GPU {scope.gpu} has {free / 2**30:.0f} GiB free, too little for two engines: free some of it")


def _start(stage: _Stage) -> float:
    """Side by side: what both need is known and fits, so neither has to wait to see what the other leaves. Returns how
    long it took, seconds."""
    began = time.monotonic()
    host = stage.host
    for name in (SERVING, ROLLOUT):
        host.launch(name)
    for name in (SERVING, ROLLOUT):
        host.wait_ready(name)
        stage.report.fact(f"{name} engine started, seconds", round(time.monotonic() - began, 1))
    took_s = time.monotonic() - began
    stage.claim("both engines started", took_s, "s", 90)
    return took_s


def _hooks(stage: _Stage) -> None:
    """Whether both engines have ROSE's hooks, and by which mechanisms, as SGLang resolved its arguments."""
    accepted = 0
    for role in ("serving", "rollout"):
        seen = described(stage.host.page.path, role)
        if seen is None or seen.refused:
            stage.report.fact(f"{role} hooks", "not there" if seen is None else seen.refused)
            continue
        accepted += role == "serving" or seen.compute_mechanism.endswith("layer-yield")
        stage.report.fact(f"{role} mechanisms", f"{seen.compute_mechanism}, {seen.memory_mechanism}")
        with suppress(OSError, ValueError):
            with urllib.request.urlopen(f"{stage.host.seats[role].engine.url}/server_info", timeout=10) as answer:
                info = json.loads(answer.read())
            names = ("attention_backend", "sampling_backend", "disable_overlap_schedule", "cuda_graph_config")
            stage.report.fact(f"{role} arguments", {name: info.get(name) for name in names})
    stage.claim("hooks accepted", accepted, "engines", 2, lower=False)


# ------------------------------------------------------------------ rounds


def _scene(stage: _Stage, rollout: Worker) -> Scene:
    return Scene(
        host=stage.host,
        serving=stage.serving,
        rollout=rollout,
        turns=_TURNS,
        budgets=stage.budgets,
        max_prompt_tokens=stage.prompt_tokens_max,
    )


def _arrivals(stage: _Stage, number: int, seconds: float = 5.0) -> traffic.Arrivals:
    return traffic.window(stage.trace, number, seconds, stage.rate_per_s)


def _rounds(stage: _Stage) -> None:
    with Worker("rollout") as rollout:
        _play(stage, rollout)
    stage.report.detail["rounds"] = [
        figures.round_figures(one, stage.budgets) for rounds in stage.played.values() for one in rounds
    ]
    _claim_rounds(stage)


def _play(stage: _Stage, rollout: Worker) -> None:
    lengths, report = stage.lengths, stage.report
    # In the first play both engines compile kernels.
    _scene(stage, rollout).play(ROSE, -1, _arrivals(stage, 20, lengths.warm_up_s), lengths.warm_up_s, 9000)
    alone = _scene(stage, rollout).play(
        SOLO, -1, _arrivals(stage, 21, lengths.calibration_s), lengths.calibration_s, 9100
    )
    busy = alone.device["serving_ns"] / alone.device["length_ns"]
    stage.budgets = Budgets(
        *(
            round(_BUDGET_FACTOR * 1e6 * figures.quantile(figures.values_ms([alone], latency), 0.99))
            for latency in figures.LATENCIES.values()
        )
    )
    stage.rate_per_s = min(_RATE_MAX_PER_S, stage.rate_per_s * min(3.0, max(0.3, _BUSY_WANTED / max(busy, 0.01))))
    report.fact("serving alone busy, share", round(busy, 3))
    report.fact("serving requests a second", round(stage.rate_per_s, 2))
    for number in range(lengths.rounds_max):
        if number and stage.left_s < 2 * (lengths.round_s + _ROUND_EXTRA_S) + lengths.later_s:
            report.fact("rounds left out", f"{lengths.rounds_max - number} of {lengths.rounds_max}: too little time")
            break
        for policy in order((SOLO, ROSE), number):
            arrivals = _arrivals(stage, number, lengths.round_s)
            one = _scene(stage, rollout).play(policy, number, arrivals, lengths.round_s, 16 * number + (policy == ROSE))
            stage.played[policy].append(one)
            echo(json.dumps(figures.round_figures(one, stage.budgets)), err=True)


def _claim_rounds(stage: _Stage) -> None:
    solo, rose = stage.played[SOLO], stage.played[ROSE]
    stage.claim("slice sum error", max(_sum_error_ns(one) for one in [*solo, *rose]), "ns", 0)
    over = [sum(figures.over_budget(one, stage.budgets) for one in rounds) for rounds in (rose, solo)]
    stage.claim("requests over budget, rose less solo", over[0] - over[1], "requests", 0)
    pairs = zip(solo, rose, strict=True)
    shares = sorted(harvest_share(alone.device, lent.device) for alone, lent in pairs)
    stage.claim("idle time harvested", shares[len(shares) // 2], "share", 0.8, lower=False)
    stage.report.fact("rollout tokens a second", [round(one.tokens_per_s) for one in rose])
    for what, share, target, tail in _RATIOS:
        # Of the requests of all rounds: a round has too few for a tail of its own.
        lent, alone = (
            figures.quantile(figures.values_ms(rounds, figures.LATENCIES[what]), share) for rounds in (rose, solo)
        )
        name = f"{what} p{share * 100:g}, rose / solo"
        if tail and stage.report.quick:
            stage.report.fact(name, round(lent / alone, 3))
        else:
            stage.claim(name, lent / alone, "x", target)


def _sum_error_ns(one: Round) -> int:
    device = one.device
    parts = device["serving_ns"] + device["rollout_ns"] + device["headroom_ns"] + device["idle_ns"]
    return abs(device["length_ns"] - parts)


# ------------------------------------------------------------------ engines that end, and begin anew


def _fault(stage: _Stage, fault: engine_faults.Fault, number: int) -> None:
    with Worker("rollout") as rollout:
        fault(_scene(stage, rollout), stage.claim, stage.report, _arrivals(stage, number))


def _restart(stage: _Stage, small: PolicyShape) -> None:
    """A rollout engine beside the serving engine that went on: of few layers, for the sync."""
    host, began = stage.host, time.monotonic()
    host.stop([ROLLOUT])
    host.models = replace(host.models, rollout=engine_models.write(stage.scope.folder / "small", small))
    host.launch(ROLLOUT)
    host.wait_ready(ROLLOUT)
    stage.report.fact("rollout engine beside a serving one, seconds", round(time.monotonic() - began, 1))


def _within(seconds: float, act: Callable[[], object]) -> None:
    """Do it in a thread that is given up after `seconds`. Raises TimeoutError then, and what `act` raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"it was not done after {seconds:.0f} s")
    if raised:
        raise raised[0]


def _end(host: Host, report: StageReport) -> None:
    """End what runs at once, and keep the ends of the engines' logs: they go with the folder."""
    for seat in host.seats.values():
        seat.engine.kill()
    logs = sorted(Path(host.folder).glob("*.log*"))
    report.detail["logs"] = {path.name: path.read_text(errors="replace").splitlines()[-_LOG_LINES:] for path in logs}
    report.save()
