"""`python -m benchmarks.coserve`: lending's cost for serving, and its harvest, under several policies."""

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

from benchmarks.coserve import account, claims, overhead, pressure
from benchmarks.shared import CACHE, arguments, at_least_one, measured
from rose.accept.coserve import rounds, traffic
from rose.accept.coserve.host import ROLLOUT, SERVING, Cores, Gpu, opened
from rose.accept.coserve.keeper import IDLE, POLICIES, ROSE, ROSE_LAYERS, ROSE_SLACK, SOLO
from rose.accept.coserve.rounds import LATENCIES, Round, Scene
from rose.accept.coserve.worker import Worker
from rose.accept.report import Report, phase
from rose.runtime.models import models
from rose.runtime.models.policy_model import Policy, PolicyShape
from rose.runtime.policy.slack import Budgets
from rose.runtime.preflight import PreflightError, require_gpu
from rose.runtime.traffic import trace as traces
from rose.runtime.traffic.trace import Trace
from rose.terminal import echo

#: Calibration wants serving alone to keep the device busy for a share between these.
_BUSY_LOW, _BUSY_HIGH, _BUSY_WANTED = 0.35, 0.50, 0.42
_REQUESTS_PER_S, _GPU_REQUESTS_PER_S = 1.3, 4.7
_CALIBRATIONS_MAX = 3
#: Loads by their mean of live requests, of so many prompt and output tokens each; `light` is the trace's.
LIGHT = "light"
_LIVE = {"steady": 2, "heavy": 5}
_LIVE_TOKENS, _GPU_LIVE_TOKENS = (48, 32), (512, 256)
_BUDGET_FACTOR = 3  #: A latency budget is this many times the 99th percentile of serving alone.
_WARM_UP_S = 4.0
_SEEDS_PER_ROUND = 16
_SHARED_MEMORY = Path("/dev/shm")
_UNLIMITED = Budgets(1 << 60, 1 << 60)
#: 99th percentiles of the lengths, prompt and output, for a GPU that runs a model of 8 billion parameters.
_GPU_TOKENS_MAX = (2048, 48)
_TURNS = 32


def main() -> None:
    options = _arguments()
    report = Report("coserve", options.quick)
    home = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with measured(report, options.json, home) as folder:
        measure(report, options, folder)


def measure(report: Report, options: argparse.Namespace, folder: Path) -> None:
    echo(f"serving's arrivals are of {options.trace.name}", err=True)
    gpu = None if options.gpu is None else Gpu(options.gpu)
    checkpoints = _built_in(folder) if options.model is None else dict.fromkeys((SERVING, ROLLOUT), options.model)
    whole = account.mooncake(options.trace) if ".jsonl" in options.trace.suffixes else traces.read(options.trace)
    trace = traffic.scaled(whole, *(traffic.CORE_TOKENS_MAX if gpu is None else _GPU_TOKENS_MAX))
    cores = Cores.available(gpu)
    report.detail["setup"] = {
        "trace": trace.name,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "turns_in_flight": _TURNS,
        "device_cores": cores.device,
        "host_cores": cores.host,
    }
    with opened(folder, cores, gpu, checkpoints) as host, Worker("serving") as serving, Worker("rollout") as rollout:
        with phase("engines: serving, rollout"):
            overhead.start(host, ["serving", "rollout"])
        scene = Scene(
            host=host,
            serving=serving,
            rollout=rollout,
            turns=_TURNS,
            budgets=_UNLIMITED,
            max_prompt_tokens=int(trace.prompt_tokens.max()),
        )
        policies = [name for name in POLICIES if name in options.policies]
        with phase("warm-up"):
            for index, name in enumerate(policies):
                warm_up = traffic.window(trace, 0, _WARM_UP_S, _REQUESTS_PER_S)
                scene.play(name, -1, warm_up, _WARM_UP_S, seed=_SEEDS_PER_ROUND * 100_000 + index)
        for load in options.load:
            _compare(report, options, scene, trace, load, policies)
        if report.quick or LIGHT not in options.load:
            return
        if gpu is None:  # A GPU's pool keeps its size: there are no pages to give back.
            pressure.measure(report, host, rollout, _TURNS, trials=30)
        overhead.measure(report, host, serving, starts=2, trials=25)


def _built_in(folder: Path) -> dict[str, Path]:
    rollout = folder / "rollout-model"
    rollout.mkdir()
    Policy(PolicyShape()).save(rollout)
    serving = models.resolve(models.SMOLLM2, CACHE, lambda text: echo(text, err=True))
    return {SERVING: serving, ROLLOUT: rollout}


def _compare(
    report: Report, options: argparse.Namespace, scene: Scene, trace: Trace, load: str, policies: list[str]
) -> None:
    if load != LIGHT:
        policies = [name for name in policies if name != ROSE_LAYERS]
    with phase(f"{load}: calibration, serving alone"):
        rate, budgets = _calibrate(report, options.gpu is not None, scene, trace, load)
    scene = replace(scene, budgets=budgets)
    if load != LIGHT:  # Such budgets are made of requests that are all equal.
        scene = replace(scene, max_prompt_tokens=(_LIVE_TOKENS if options.gpu is None else _GPU_LIVE_TOKENS)[0])
    played: dict[str, list[Round]] = {name: [] for name in policies}
    try:
        for number in range(options.rounds):
            arrivals = _arrivals(trace, load, options.gpu is not None, number, options.seconds, rate)
            for name in rounds.order(policies, number):
                seed = number * _SEEDS_PER_ROUND + policies.index(name)
                one = scene.play(name, number, arrivals, options.seconds, seed)
                played[name].append(one)
                echo(f"{load}, round {number + 1} of {options.rounds}, {_line(one, budgets)}", err=True)
            if load != LIGHT:  # So that serving alone keeps its live requests if the machine's own speed changes.
                rate *= math.sqrt(_LIVE[load] / rounds.mean_live(played[SOLO][-1], arrivals))
    finally:
        # Rounds without a counterpart are left out: the last one may have been cut short.
        whole = {name: series[: min(map(len, played.values()))] for name, series in played.items()}
        if whole[SOLO] and load == LIGHT:
            shape = json.loads((scene.host.models[ROLLOUT] / "config.json").read_text())
            claims.claim(report, whole, budgets, options.seconds, int(shape["num_hidden_layers"]))
        elif whole[SOLO]:
            claims.claim_beside(report, whole, budgets, load)


def _arrivals(trace: Trace, load: str, on_gpu: bool, number: int, seconds: float, rate: float) -> traffic.Arrivals:
    if load == LIGHT:
        return traffic.window(trace, number, seconds, rate)
    return traffic.equal(load, number, seconds, rate, *(_GPU_LIVE_TOKENS if on_gpu else _LIVE_TOKENS))


def _calibrate(report: Report, on_gpu: bool, scene: Scene, trace: Trace, load: str) -> tuple[float, Budgets]:
    """Return a rate at which serving alone has the target load, and its budgets."""
    rate, detail = _GPU_REQUESTS_PER_S if on_gpu else _REQUESTS_PER_S, []
    last: tuple[float, float] | None = None
    power = 1.0
    seconds = 5.0 if report.quick else 20.0 if on_gpu or load != LIGHT else 40.0
    for attempt in range(_CALIBRATIONS_MAX):
        arrivals = _arrivals(trace, load, on_gpu, 0, seconds, rate)
        one = scene.play(SOLO, -1, arrivals, seconds, _SEEDS_PER_ROUND * 200_000 + attempt)
        busy = one.device["serving_ns"] / one.device["length_ns"]
        live = rounds.mean_live(one, arrivals)
        budgets = rounds.budgets_of(one, _BUDGET_FACTOR)
        detail.append({"requests_per_s": rate, "busy_share": busy, "live": live, "requests": len(one.requests)})
        echo(f"{rate:.2f} requests/s: busy {busy:.0%}, {live:.1f} live; {_line(one, budgets)}", err=True)
        factor = _BUSY_WANTED / busy if load == LIGHT else _LIVE[load] / live
        low, high = _BUSY_WANTED / _BUSY_HIGH, _BUSY_WANTED / _BUSY_LOW
        if low <= factor <= high or (report.quick and load == LIGHT):
            break
        if last is not None:  # Near its limit, an engine's load grows faster than the rate.
            power = max(1.0, math.log(last[1] / factor) / math.log(rate / last[0]))
        last = rate, factor
        rate *= factor ** (1 / power)
    report.detail[f"calibration, {load}"] = detail
    return detail[-1]["requests_per_s"], budgets


def _line(one: Round, budgets: Budgets) -> str:
    latencies = []
    for name, latency in LATENCIES.items():
        values = rounds.values_ms([one], latency)
        latencies.append(f"{name} {rounds.quantile(values, 0.5):.0f} / {rounds.quantile(values, 0.99):.0f}")
    device = one.device
    parts = {"serving": device["serving_ns"], "rollout": device["rollout_ns"]}
    parts |= {"held": device["headroom_ns"], "idle": device["idle_ns"]}
    shares = [f"{name} {part_ns / device['length_ns']:.0%}" for name, part_ns in parts.items()]
    return (
        f"{one.policy}: {len(one.requests)} requests, p50 / p99 ms of {', '.join(latencies)}, "
        f"{rounds.over_budget(one, budgets)} over budget; {', '.join(shares)}; "
        f"{one.tokens_per_s:.0f} rollout tokens/s"
    )


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument(
        "--load",
        type=_loads,
        default=[LIGHT, *_LIVE],
        metavar="LOADS",
        help=f"of {LIGHT} (the trace, serving busy for 42%%) and "
        f"{' and '.join(f'{name} ({live} live requests)' for name, live in _LIVE.items())}; all if left out",
    )
    parser.add_argument(
        "--policies",
        type=_policies,
        metavar="POLICIES",
        help=f"play only these policies and {SOLO}; known are {', '.join(POLICIES)}",
    )
    parser.add_argument("--rounds", type=at_least_one, help="rounds of each policy; 5 if left out")
    parser.add_argument("--seconds", type=_length, help="length of a round; 60 if left out")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="serving traffic: a CSV, or Mooncake's JSON lines")
    parser.add_argument("--gpu", type=int, metavar="INDEX", help="share this GPU instead of a core; needs --model")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="what both engines run on a GPU")
    options = parser.parse_args()
    if (options.gpu is None) != (options.model is None):
        parser.error("--gpu and --model go together: a GPU's engines run the model of a folder that you name")
    if options.model is not None and not (options.model / "config.json").is_file():
        parser.error(f"--model {options.model} is no folder with a config.json: name a checkpoint's folder")
    if options.gpu is not None:
        try:
            require_gpu(options.gpu, "--gpu", "Name another, or leave --gpu and --model out to share a core.")
        except PreflightError as error:
            parser.error(str(error))
    if options.trace is not None and not options.trace.is_file():
        parser.error(f"--trace {options.trace} is not there")
    options.policies = options.policies or ([SOLO, IDLE, ROSE, ROSE_SLACK] if options.quick else [*POLICIES])
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.seconds = options.seconds or (5.0 if options.quick else 60.0)
    options.trace = options.trace or traffic.SAMPLE
    return options


def _loads(text: str) -> list[str]:
    return _of(text, "load", [LIGHT, *_LIVE])


def _policies(text: str) -> list[str]:
    return [SOLO, *_of(text, "policy", list(POLICIES))]


def _of(text: str, what: str, known: list[str]) -> list[str]:
    if unknown := sorted(set(text.split(",")) - set(known)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no {what}; known are {', '.join(known)}")
    return text.split(",")


def _length(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds of at least 1")
    return seconds


if __name__ == "__main__":
    main()
