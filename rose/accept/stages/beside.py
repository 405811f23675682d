"""Rollouts compute on credit beside a serving that is never empty, by the page, plugin and gate of the live runtime, no
SGLang. Serving gives credit for a share of a step, and each nanosecond of work is to delay its step by one factor."""

import os
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from rose.accept.peer import Peer, PeerError
from rose.accept.stage import Scope, StageReport
from rose.accept.stages.gate import END_S, LATE_S, LEAD_NS, SETTLING_NS, Device, Mode, free_core, quantile_ms
from rose.accept.stages.gate_processes import Busy, BusyStep, make_party
from rose.clock import monotonic_ns
from rose.runtime.coserving.meter.meter_gpu import GpuInstrument
from rose.runtime.coserving.page import Field, Party
from rose.runtime.policy.credit import STRETCH_MAX

SHARES = (0.0, 0.25, 0.5, 0.75)  # Of a step, as credit beside it; 0: no rollouts.
LINE_TOLERANCE, SLICE_NS = 0.1, 2_100_000
_FACTOR_LEAST, _FACTOR_MOST = 1.0, 1.4
_WISH_TARGET_MS = 2.5
_WARM_UP = Mode(name="warm-up", policy="rose", seconds=1.0, quick_seconds=0.5, served=False)
_ROUNDS, _ROUND_S, _QUICK_ROUNDS, _QUICK_ROUND_S = 7, 5.0, 2, 1.2
_WISHES_S, _QUICK_WISHES_S = 25.0, 2.0
_POLICY_S, _QUICK_POLICY_S = 5.0, 1.2
_LATER_S, _QUICK_LATER_S = _WISHES_S + 2 * _POLICY_S + 10.0, _QUICK_WISHES_S + 2 * _QUICK_POLICY_S + 10.0
_THIRD_START_S, _THIRD_S, _THIRD_MAX_S = 20.0, 1.5, 60.0  # Until NVML is asked about it; that it computes at most.


class Line(NamedTuple):
    """The line through the origin next to (work, delay): its slope, and the largest distance of a delay to it."""

    factor: float
    off_ns: float
    allowed_ns: float


def measure(scope: Scope, report: StageReport) -> None:
    """On CPU cores both processes share one core. Raises PeerError if a process failed."""
    deadline_ns = monotonic_ns() + round((scope.seconds - END_S) * 1e9)
    report.fact("program nvidia-cuda-mps-control", shutil.which("nvidia-cuda-mps-control"))
    device = Device(scope.folder, scope.device, core=free_core(report) if scope.gpu is None else None)
    try:
        step_ns = device.start(deadline_ns)[0].step_ns
        device.play(_WARM_UP, 0, _WARM_UP.quick_seconds if scope.quick else _WARM_UP.seconds)
        _measure_rounds(report, device, step_ns, deadline_ns)
        _measure_wishes(scope, report, device, step_ns)
        _measure_third(scope, report, device)
        report.claim("beside: slice sum error", device.account()["slice_error_ns"], "ns", 0, "lower")
    finally:
        device.close()


def _play(device: Device, seconds: float, work_ns: int | None, *, wishes: bool = False) -> Busy:
    """Play a round with credit for `work_ns` beside each step: 0 without rollouts, None by the policy."""
    from_ns = monotonic_ns() + LEAD_NS
    until_ns = from_ns + round(seconds * 1e9)
    deadline_ns = until_ns + round(LATE_S * 1e9)
    with device.lent("rose", "beside", deadline_ns, stretch=STRETCH_MAX, slack_share=1.0):
        if work_ns != 0:
            device.rollout.tell("play", from_ns, until_ns, watched=False)
        device.serving.tell("play_busy", from_ns, until_ns, work_ns, wishes)
        if work_ns != 0:
            device.hear(device.rollout, deadline_ns)
        busy: Busy = device.hear(device.serving, deadline_ns)
    return busy


def _measure_rounds(report: StageReport, device: Device, step_ns: int, deadline_ns: int) -> None:
    rounds, seconds = (_QUICK_ROUNDS, _QUICK_ROUND_S) if report.quick else (_ROUNDS, _ROUND_S)
    played: dict[float, list[list[BusyStep]]] = {share: [] for share in SHARES}
    later_s = _QUICK_LATER_S if report.quick else _LATER_S
    for number in range(rounds):
        if number and (deadline_ns - monotonic_ns()) / 1e9 < len(SHARES) * seconds + later_s:
            report.fact("rounds left out: too little time", rounds - number)
            break
        turn = number % len(SHARES)
        for share in (*SHARES[turn:], *SHARES[:turn]):
            played[share].append(settled(_play(device, seconds, round(share * step_ns)).steps))
    claim_rounds(report, played)
    factor = device.page.get(Party.SERVING, Field.FACTOR_PPM) / 1e6
    report.fact("factor that serving's plugin learned, an upper bound", factor)


def settled(steps: Sequence[BusyStep]) -> list[BusyStep]:
    """Return the steps after a round's first moments."""
    took_ns, kept = 0, []
    for step in steps:
        took_ns += step.length_ns
        kept += [step] * (took_ns > SETTLING_NS)
    return kept


def claim_rounds(report: StageReport, played: Mapping[float, Sequence[Sequence[BusyStep]]]) -> None:
    points = [point_of(played[share], played[0.0]) for share in SHARES if share]
    line = line_of(points)
    alone_ns = statistics.median(_lengths(played[0.0]))
    report.fact("a step alone, ms", round(alone_ns / 1e6, 3))
    for share, (work_ns, delay_ns) in zip(SHARES[1:], points, strict=True):
        spent = f"work {work_ns / 1e6:.2f} ms a step, delay {delay_ns / 1e6:.2f} ms"
        report.fact(f"credit for {share:.0%} of a step", spent)
    report.claim("beside: delay per work, least", line.factor, "x", _FACTOR_LEAST, "higher")
    report.claim("beside: delay per work, most", line.factor, "x", _FACTOR_MOST, "lower")
    report.claim("beside: delays off their line", line.off_ns / 1e6, "ms", round(line.allowed_ns / 1e6, 3), "lower")
    longest = {share: max(_lengths(rounds)) / alone_ns for share, rounds in played.items()}
    report.fact("longest step alone / usual", round(longest.pop(0.0), 3))
    if report.quick:
        report.fact("longest step beside / alone", round(max(longest.values()), 3))
    else:
        report.claim("beside: longest step / alone", max(longest.values()), "x", STRETCH_MAX, "lower")


def _lengths(rounds: Iterable[Iterable[BusyStep]]) -> list[int]:
    return [step.length_ns for steps in rounds for step in steps]


def point_of(rounds: Sequence[Sequence[BusyStep]], alone: Sequence[Sequence[BusyStep]]) -> tuple[float, float]:
    """Return (work in a step, its delay), each the median over rounds of their means."""
    works = [statistics.fmean(step.work_ns for step in steps) for steps in rounds]
    delays = [
        statistics.fmean(_lengths([steps])) - statistics.fmean(_lengths([control]))
        for steps, control in zip(rounds, alone, strict=True)
    ]
    return statistics.median(works), statistics.median(delays)


def line_of(points: Sequence[tuple[float, float]]) -> Line:
    squares = sum(work**2 for work, _ in points)
    factor = sum(work * delay for work, delay in points) / squares if squares else 0.0
    off_ns = max(abs(delay - factor * work) for work, delay in points)
    return Line(factor, off_ns, max(SLICE_NS, LINE_TOLERANCE * max(delay for _, delay in points)))


def _measure_wishes(scope: Scope, report: StageReport, device: Device, step_ns: int) -> None:
    seconds = _QUICK_WISHES_S if scope.quick else _WISHES_S
    wishes = _play(device, seconds, round(SHARES[-1] * step_ns), wishes=True).wishes
    report.fact("wishes", len(wishes))
    if not wishes:
        raise PeerError("no request arrived beside rollouts: serving's steps took longer than the round")
    full_ns, lost_ns = [wish.full_speed_ns for wish in wishes], [wish.lost_ns for wish in wishes]
    for what, values_ns in (("to serving at full speed", full_ns), ("serving's delay over half a step", lost_ns)):
        report.fact(f"wish: {what}, p50 and p99, ms", [quantile_ms(values_ns, share) for share in (0.5, 0.99)])
    if scope.gpu is not None and not scope.quick:
        p99_ms = quantile_ms(full_ns, 0.99) or 0.0
        report.claim("beside: wish to serving at full speed, p99", p99_ms, "ms", _WISH_TARGET_MS, "lower")


def _measure_third(scope: Scope, report: StageReport, device: Device) -> None:
    """Let the policy give credit, and then nothing beside a third process. On cores the count is set by hand."""
    seconds = _QUICK_POLICY_S if scope.quick else _POLICY_S
    steps = settled(_play(device, seconds, None).steps)
    share = sum(step.work_ns for step in steps) / max(1, sum(step.length_ns for step in steps))
    report.claim("beside: rollouts' share of the time on the policy's credit", share, "share", 0.05, "higher")
    with ExitStack() as stack:
        others = 1
        if scope.gpu is not None:
            third = stack.enter_context(
                Peer("third", make_party, "third", scope.device, device.page.path, None, start="forkserver")
            )
            third.tell("start")
            device.hear(third, monotonic_ns() + round(_THIRD_START_S * 1e9))
            third.tell("compute", monotonic_ns() + round(_THIRD_MAX_S * 1e9))
            third.answers(_THIRD_S)
            others = _others(scope.gpu)
            report.claim("beside: a third process that NVML counts", others, "processes", 1, "higher")
        device.page.set(Party.AGENT, Field.OTHERS, others)
        work_ns = sum(step.work_ns for step in _play(device, seconds, None).steps)
        device.page.set(Party.AGENT, Field.OTHERS, 0)
        report.claim("beside: work beside a third process", work_ns, "ns", 0, "lower")


def _others(gpu: int) -> int:
    """Return how many more processes than the two engines compute on the GPU, as an agent counts them."""
    instrument = GpuInstrument(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))
    instrument.open()
    try:
        instrument.read()
        return instrument.others
    finally:
        instrument.close()
