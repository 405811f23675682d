"""Measures, without SGLang, how much longer serving's steps take while rollouts work beside them. The delay must be
proportional to the rollouts' work."""

import os
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from rose.accept.peer import Peer, PeerError
from rose.accept.stage import Scope, StageReport
from rose.accept.stages.gate import END_S, LATE_S, LEAD_NS, Device, Mode, free_core, quantile_ms
from rose.accept.stages.gate_processes import BusyStep, Wish, make_party
from rose.clock import monotonic_ns
from rose.runtime.coserving.meter.meter_gpu import GpuInstrument
from rose.runtime.coserving.page import Field, Party
from rose.runtime.policy.credit import STRETCH_MAX

SHARES = (0.0, 0.25, 0.5, 0.75)  # Parts of a step, as credit beside it; 0: no rollouts.
LINE_TOLERANCE, SLICE_NS = 0.1, 2_100_000
_FACTOR_LEAST, _FACTOR_MOST = 1.0, 1.4
_WISH_TARGET_MS = 2.5
_WARM_UP = Mode(name="warm-up", policy="rose", seconds=1.0, quick_seconds=0.5, served=False)
_ROUNDS, _QUICK_ROUNDS = 6, 2
_ROUND_S, _WISHES_S, _QUICK_S = 5.0, 25.0, 1.25
_WISHES_STRETCH = 0.99 * STRETCH_MAX  # From STRETCH_MAX on, arrivals do not stop rollouts.
_THIRD_S = 20.0  # Time until a third process computes on a card.

Rounds = Sequence[Sequence[BusyStep]]


def measure(scope: Scope, report: StageReport) -> None:
    deadline_ns = monotonic_ns() + round((scope.seconds - END_S) * 1e9)
    report.fact("program nvidia-cuda-mps-control", shutil.which("nvidia-cuda-mps-control"))
    core = free_core(report) if scope.gpu is None else None
    round_s, wishes_s = (_QUICK_S, 2 * _QUICK_S) if scope.quick else (_ROUND_S, _WISHES_S)
    with closing(Device(scope.folder, scope.device, core=core)) as device:
        step_ns = device.start(deadline_ns)[0].step_ns
        device.play(_WARM_UP, 0, _WARM_UP.quick_seconds if scope.quick else _WARM_UP.seconds)
        played: dict[float, list[list[BusyStep]]] = {share: [] for share in SHARES}
        for turn in range(_QUICK_ROUNDS if scope.quick else _ROUNDS):
            for share in (*SHARES[turn % len(SHARES) :], *SHARES[: turn % len(SHARES)]):
                played[share].append(_play(device, round_s, round(share * step_ns))[0])
        claim_rounds(report, played)
        factor = device.page.get(Party.SERVING, Field.FACTOR_PPM) / 1e6
        report.fact("factor that serving's plugin learned, an upper bound", factor)
        _claim_wishes(scope, report, _play(device, wishes_s, round(SHARES[-1] * step_ns), wishes=True)[1])
        _measure_third(scope, report, device, round_s)
        report.claim("beside: slice sum error", device.account()["slice_error_ns"], "ns", 0, "lower")


def _play(
    device: Device, seconds: float, work_ns: int | None, *, wishes: bool = False
) -> tuple[list[BusyStep], list[Wish]]:
    """Play a round in which serving is busy. Beside each serving step, rollouts get credit for `work_ns` of work (0:
    there are no rollouts; None: the policy decides). With `wishes`, a Wish is measured every few steps."""
    from_ns = monotonic_ns() + LEAD_NS
    until_ns = from_ns + round(seconds * 1e9)
    deadline_ns = until_ns + round(LATE_S * 1e9)
    stretch = _WISHES_STRETCH if wishes else STRETCH_MAX
    with device.lent("rose", "beside", deadline_ns, stretch=stretch, slack_share=1.0):
        if work_ns != 0:
            device.rollout.tell("play", from_ns, until_ns)
        device.serving.tell("play_busy", from_ns, until_ns, work_ns, wishes)
        if work_ns != 0:
            device.hear(device.rollout, deadline_ns)
        steps, seen = device.hear(device.serving, deadline_ns)
    return steps, seen


def claim_rounds(report: StageReport, played: Mapping[float, Rounds]) -> None:
    points = [point_of(played[share], played[0.0]) for share in SHARES if share]
    factor, off_ns, allowed_ns = line_of(points)
    alone_ns = statistics.median(_lengths(played[0.0]))
    report.fact("a step alone, ms", alone_ns / 1e6)
    for share, point in zip(SHARES[1:], points, strict=True):
        report.fact(f"credit for {share:.0%} of a step: work and delay of each, ms", [part / 1e6 for part in point])
    report.claim("beside: delay per work, least", factor, "x", _FACTOR_LEAST, "higher")
    report.claim("beside: delay per work, most", factor, "x", _FACTOR_MOST, "lower")
    report.claim("beside: delays off their line", off_ns / 1e6, "ms", round(allowed_ns / 1e6, 3), "lower")
    longest = {share: max(_lengths(rounds)) / alone_ns for share, rounds in played.items()}
    report.fact("longest step / alone, by credit", longest)
    if not report.quick:
        report.claim(
            "beside: longest step / alone", max(map(longest.__getitem__, SHARES[1:])), "x", STRETCH_MAX, "lower"
        )


def _lengths(rounds: Iterable[Iterable[BusyStep]]) -> list[int]:
    return [step.length_ns for steps in rounds for step in steps]


def point_of(rounds: Rounds, alone: Rounds) -> tuple[float, float]:
    works = [statistics.fmean(step.work_ns for step in steps) for steps in rounds]
    means, controls = ([statistics.fmean(_lengths([steps])) for steps in each] for each in (rounds, alone))
    return statistics.median(works), statistics.median(map(float.__sub__, means, controls))


def line_of(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Fit a line through 0 to points (work, delay). Return the slope, the largest error and the allowed error."""
    squares = sum(work**2 for work, _ in points)
    factor = sum(work * delay for work, delay in points) / squares if squares else 0.0
    off_ns = max(abs(delay - factor * work) for work, delay in points)
    return factor, off_ns, max(SLICE_NS, LINE_TOLERANCE * max(delay for _, delay in points))


def _claim_wishes(scope: Scope, report: StageReport, wishes: Sequence[Wish]) -> None:
    report.fact("wishes", len(wishes))
    if not wishes:
        raise PeerError("no request arrived beside rollouts: serving's steps took longer than the round")
    full_ns, delays_ns = zip(*wishes, strict=True)
    for what, values_ns in (("to serving at full speed", full_ns), ("delay half a step later", delays_ns)):
        report.fact(f"wish: {what}, p50 and p99, ms", [quantile_ms(values_ns, share) for share in (0.5, 0.99)])
    if scope.gpu is not None and not scope.quick:
        p99_ms = quantile_ms(full_ns, 0.99) or 0.0
        report.claim("beside: wish to serving at full speed, p99", p99_ms, "ms", _WISH_TARGET_MS, "lower")


def _measure_third(scope: Scope, report: StageReport, device: Device, seconds: float) -> None:
    steps, _ = _play(device, seconds, None)
    share = sum(step.work_ns for step in steps) / max(1, sum(_lengths([steps])))
    report.claim("beside: rollouts' share of the time on the policy's credit", share, "share", 0.05, "higher")
    if scope.gpu is None:
        _claim_none_beside(report, device, seconds, others=1)
        return
    third = Peer("third", make_party, "third", scope.device, device.page.path, None, start="forkserver")
    with third, closing(GpuInstrument(scope.gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))) as card:
        third.tell("size", 1)
        device.hear(third, monotonic_ns() + round(_THIRD_S * 1e9))
        card.open()
        card.read()
        report.claim("beside: a third process that NVML counts", card.others, "processes", 1, "higher")
        _claim_none_beside(report, device, seconds, card.others)


def _claim_none_beside(report: StageReport, device: Device, seconds: float, others: int) -> None:
    device.page.set(Party.AGENT, Field.OTHERS, others)
    work_ns = sum(step.work_ns for step in _play(device, seconds, None)[0])
    report.claim("beside: work beside a third process", work_ns, "ns", 0, "lower")
