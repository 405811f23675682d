"""Two SGLang engines on the card: what lending costs serving, what it harvests, a sync, and either engine killed.

The model has the shape of a Llama with 8 billion parameters and random weights. Parts follow one another for as long
as there is time; a part that no longer fits is a fact that says so.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
import traceback
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from rose.accept.coserve import figures, traffic
from rose.accept.coserve.host import ROLLOUT, SERVING, Cores, Gpu, Host, Models, opened
from rose.accept.coserve.keeper import ROSE, SOLO
from rose.accept.coserve.rounds import Round, Scene, harvest_share, order
from rose.accept.coserve.worker import Worker
from rose.accept.stage import Scope, SkippedError, StageReport
from rose.accept.stages import engine_models, engine_parts
from rose.runtime.coserving.attach.attachment import described
from rose.runtime.engines import gpu
from rose.runtime.policy.slack import Budgets
from rose.runtime.traffic import trace as traces
from rose.runtime.training.policy_model import PolicyShape
from rose.terminal import echo

_GPU_TOKENS, _GRAPH_BATCH_MAX, _TURNS = 32768, 16, 16
_GPU_LENGTHS_MAX = (1024, 32)
#: Layers in a quick run, and of the rollout engine that is brought to other weights, which are published in full.
_QUICK_LAYERS, _SYNC_LAYERS = 8, 4
#: An engine's contexts, graphs and activations beside its weights and its pool.
_ENGINE_BYTES = 4 << 30
_BUSY_TARGET = 0.42
_RATE_PER_S, _GPU_RATE_PER_S, _RATE_MAX_PER_S = 1.5, 6.0, 30.0
_BUDGET_FACTOR = 3
_UNLIMITED = Budgets(1 << 60, 1 << 60)
#: The stage is over this long before it would be stopped.
_MARGIN_S = 6.0
#: A round is longer than its traffic: the ramp before it, and the last answers.
_ROUND_EXTRA_S = 2.5
_FAULT_S = 5.0
#: (latency, quantile, target of the ratio, whether it is about a tail)
_RATIOS = (
    ("TTFT", 0.5, 1.05, False),
    ("TPOT", 0.5, 1.05, False),
    ("TTFT", 0.99, 1.07, True),
    ("TPOT", 0.99, 1.07, True),
)
_PUBLISH_MAX_S = 15.0
_LOG_LINES = 25
#: What the parts after the rounds are expected to take; an engine alone starts in this share of both together.
_KILL_S, _RESTART_S, _RESTART_SHARE, _SYNC_S = 6.0, 22.0, 0.65, 16.0
_LATER_S = 2 * _KILL_S + _RESTART_S + _SYNC_S


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lengths:
    """Seconds of each play, and how many rounds at most."""

    warm_up_s: float
    calibration_s: float
    round_s: float
    rounds_max: int

    @property
    def rounds_s(self) -> float:
        """What the rounds take if one of each policy is played."""
        return self.warm_up_s + self.calibration_s + 2 * self.round_s + 4 * _ROUND_EXTRA_S


_FULL = _Lengths(warm_up_s=4, calibration_s=5, round_s=6, rounds_max=3)
_QUICK = _Lengths(warm_up_s=3, calibration_s=4, round_s=4, rounds_max=2)
_CORES = _Lengths(warm_up_s=2, calibration_s=3, round_s=4, rounds_max=1)


def measure(scope: Scope, report: StageReport) -> None:
    """Raises SkippedError where engines cannot run."""
    until_s = time.monotonic() + scope.seconds - _MARGIN_S
    _require_engines(scope)
    on_cores = scope.gpu is None
    shape = engine_models.SMALL if on_cores else _shape_that_fits(scope)
    small = engine_models.layers(shape, _SYNC_LAYERS)
    models = Models(*(engine_models.write(scope.folder / role, shape) for role in (SERVING, ROLLOUT)))
    report.fact("layers", shape.num_hidden_layers)
    report.fact("parameters", engine_models.parameter_count(shape))
    device = None if scope.gpu is None else Gpu(scope.gpu, tokens=_GPU_TOKENS, graph_batch_max=_GRAPH_BATCH_MAX)
    with ExitStack() as stack:
        host = stack.enter_context(opened(scope.folder, Cores.available(device), device, models))
        stack.callback(_end, host, report)  # Kills them: asking them to end takes long.
        lengths = _FULL if not scope.quick else _CORES if on_cores else _QUICK
        parts = Parts(report, host, stack.enter_context(Worker("serving")), lengths, until_s)
        versions = engine_parts.Versions(small, scope.folder / "store")
        restart_s = max(_RESTART_S, _RESTART_SHARE * parts.start())
        parts.run("hooks", 0, parts.check_hooks)
        with suppress(Exception):  # The sync reports the failure. Rounds are not measured beside it.
            versions.wait(_PUBLISH_MAX_S)
        parts.run("rounds", lengths.rounds_s, parts.play_rounds)
        parts.run("rollout engine killed", _KILL_S, partial(parts.fault, engine_parts.kill_rollout, 7))
        restart = partial(parts.restart, scope.folder / "small", small)
        if parts.run("rollout engine started anew", restart_s, restart):
            parts.run("serving engine killed", _KILL_S, partial(parts.fault, engine_parts.kill_serving, 8))
            sync = partial(engine_parts.sync, host, versions, report)
            parts.run("sync", _SYNC_S, lambda: engine_parts.within(parts.left_s, sync))


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


def _shape_that_fits(scope: Scope) -> PolicyShape:
    """Return the model with as many layers as there is time and memory for."""
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


class Parts:
    """The parts of the stage, on one pair of engines."""

    def __init__(self, report: StageReport, host: Host, serving: Worker, lengths: _Lengths, until_s: float) -> None:
        on_cores = host.gpu is None
        lengths_max = traffic.CORE_TOKENS_MAX if on_cores else _GPU_LENGTHS_MAX
        self._report, self._host, self._serving, self._lengths = report, host, serving, lengths
        self._until_s = until_s
        self._trace = traffic.scaled(traces.read(traffic.SAMPLE), *lengths_max)
        self._prompt_tokens_max = min(int(self._trace.prompt_tokens.max()), lengths_max[0])
        self._rate_per_s = _RATE_PER_S if on_cores else _GPU_RATE_PER_S
        self._budgets = _UNLIMITED

    @property
    def left_s(self) -> float:
        """Seconds for what is still to be measured."""
        return self._until_s - time.monotonic()

    def run(self, name: str, needs_s: float, act: Callable[[], object]) -> bool:
        """Run a part if there is time; return whether it ran. A failure is a claim that does not hold."""
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
            report.claim(f"engines: {name} could be measured", 0, "", 1, "higher")
            return False
        report.fact(f"{name}, seconds", round(time.monotonic() - began_s, 1))
        return True

    def start(self) -> float:
        """Start both engines side by side: what they need is known and fits. Returns the seconds that it took."""
        began_s = time.monotonic()
        for name in (SERVING, ROLLOUT):
            self._host.launch(name)
        for name in (SERVING, ROLLOUT):
            self._host.wait_ready(name)
            self._report.fact(f"{name} engine started, seconds", round(time.monotonic() - began_s, 1))
        took_s = time.monotonic() - began_s
        self._report.claim("engines: both engines started", took_s, "s", 90, "lower")
        return took_s

    def check_hooks(self) -> None:
        """Claim that both engines have ROSE's hooks, by the mechanisms of SGLang's resolved arguments."""
        accepted = 0
        roles: tuple[Literal["serving", "rollout"], ...] = ("serving", "rollout")
        for role in roles:
            seen = described(self._host.page.path, role)
            if seen is None or seen.refused:
                self._report.fact(f"{role} hooks", "missing" if seen is None else seen.refused)
                continue
            accepted += role == SERVING or seen.compute_mechanism.endswith("layer-yield")
            self._report.fact(f"{role} mechanisms", f"{seen.compute_mechanism}, {seen.memory_mechanism}")
            with suppress(OSError, ValueError):
                with urllib.request.urlopen(f"{self._host.engines[role].url}/server_info", timeout=10) as answer:
                    info = json.loads(answer.read())
                names = ("attention_backend", "sampling_backend", "disable_overlap_schedule", "cuda_graph_config")
                self._report.fact(f"{role} arguments", {name: info.get(name) for name in names})
        self._report.claim("engines: hooks accepted", accepted, "engines", 2, "higher")

    def play_rounds(self) -> None:
        """Play rounds of serving alone and beside rollouts, for as long as the later parts still fit."""
        lengths, report = self._lengths, self._report
        played: dict[str, list[Round]] = {SOLO: [], ROSE: []}
        with Worker("rollout") as rollout:
            # In the first play both engines compile kernels.
            self._play(rollout, ROSE, -1, 20, lengths.warm_up_s)
            alone = self._play(rollout, SOLO, -1, 21, lengths.calibration_s)
            busy = alone.device["serving_ns"] / alone.device["length_ns"]
            self._budgets = figures.budgets_of(alone, _BUDGET_FACTOR)
            factor = min(3.0, max(0.3, _BUSY_TARGET / max(busy, 0.01)))
            self._rate_per_s = min(_RATE_MAX_PER_S, self._rate_per_s * factor)
            report.fact("serving alone busy, share", round(busy, 3))
            report.fact("serving requests a second", round(self._rate_per_s, 2))
            for number in range(lengths.rounds_max):
                if number and self.left_s < 2 * (lengths.round_s + _ROUND_EXTRA_S) + _LATER_S:
                    left_out = lengths.rounds_max - number
                    report.fact("rounds left out", f"{left_out} of {lengths.rounds_max}: too little time")
                    break
                for policy in order((SOLO, ROSE), number):
                    one = self._play(rollout, policy, number, number, lengths.round_s)
                    played[policy].append(one)
                    echo(json.dumps(figures.round_figures(one, self._budgets)), err=True)
        every = [one for rounds in played.values() for one in rounds]
        report.detail["rounds"] = [figures.round_figures(one, self._budgets) for one in every]
        claim_rounds(report, played, self._budgets)

    def fault(self, act: Callable[[Scene, StageReport, traffic.Arrivals], None], number: int) -> None:
        """Run a part in which an engine is killed."""
        with Worker("rollout") as rollout:
            act(self._scene(rollout), self._report, self._arrivals(number, _FAULT_S))

    def restart(self, folder: Path, small: PolicyShape) -> None:
        """Start a rollout engine of few layers, for the sync, beside the serving engine that kept running."""
        host, began_s = self._host, time.monotonic()
        host.stop([ROLLOUT])
        host.models = replace(host.models, rollout=engine_models.write(folder, small))
        host.launch(ROLLOUT)
        host.wait_ready(ROLLOUT)
        self._report.fact("rollout engine beside a serving one, seconds", round(time.monotonic() - began_s, 1))

    def _play(self, rollout: Worker, policy: str, number: int, window: int, seconds: float) -> Round:
        seed = 16 * window + (policy == ROSE)
        return self._scene(rollout).play(policy, number, self._arrivals(window, seconds), seconds, seed)

    def _scene(self, rollout: Worker) -> Scene:
        return Scene(
            host=self._host,
            serving=self._serving,
            rollout=rollout,
            turns=_TURNS,
            budgets=self._budgets,
            max_prompt_tokens=self._prompt_tokens_max,
        )

    def _arrivals(self, number: int, seconds: float) -> traffic.Arrivals:
        return traffic.window(self._trace, number, seconds, self._rate_per_s)


def claim_rounds(report: StageReport, played: dict[str, list[Round]], budgets: Budgets) -> None:
    """Claim what rounds of serving alone and beside rollouts show."""
    solo, rose = played[SOLO], played[ROSE]
    error_ns = max(_sum_error_ns(one) for one in [*solo, *rose])
    report.claim("engines: slice sum error", error_ns, "ns", 0, "lower")
    over = [sum(figures.over_budget(one, budgets) for one in rounds) for rounds in (rose, solo)]
    report.claim("engines: requests over budget, rose less solo", over[0] - over[1], "requests", 0, "lower")
    shares = [harvest_share(alone.device, lent.device) for alone, lent in zip(solo, rose, strict=True)]
    report.claim("engines: idle time harvested", statistics.median_high(shares), "share", 0.8, "higher")
    report.fact("rollout tokens a second", [round(one.tokens_per_s) for one in rose])
    for what, share, target, tail in _RATIOS:
        # A round has too few requests for a tail of its own: these are of all rounds.
        lent, alone = (
            figures.quantile(figures.values_ms(rounds, figures.LATENCIES[what]), share) for rounds in (rose, solo)
        )
        name = f"{what} p{share * 100:g}, rose / solo"
        if tail and report.quick:
            report.fact(name, round(lent / alone, 3))
        else:
            report.claim(f"engines: {name}", lent / alone, "x", target, "lower")


def _sum_error_ns(one: Round) -> int:
    device = one.device
    parts = device["serving_ns"] + device["rollout_ns"] + device["headroom_ns"] + device["idle_ns"]
    return abs(device["length_ns"] - parts)


def _end(host: Host, report: StageReport) -> None:
    """Kill the engines, and keep the ends of their logs, which are deleted with the folder."""
    for engine in host.engines.values():
        engine.kill()
    logs = sorted(Path(host.folder).glob("*.log*"))
    report.detail["logs"] = {path.name: path.read_text(errors="replace").splitlines()[-_LOG_LINES:] for path in logs}
    report.save()
