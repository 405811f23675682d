"""Arrivals of serving requests in windows of a trace. Each minute has a burst at three times the mean rate."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rose.accept.report import ROOT
from rose.config import TrafficConfig
from rose.runtime.traffic import trace as traces
from rose.runtime.traffic.trace import Trace

SAMPLE = ROOT / "sample_traces" / "bursty.csv"
CORE_TOKENS_MAX = (192, 24)  # 99th percentiles of prompt and output lengths for one core.
_BURST_FACTOR, _BURST_SHARE, _BURST_AT = 3.0, 0.1, 0.6
_BURST_PERIOD_S = 60.0
_QUIET_S = 1.5  # No request arrives at the end of a round, so that nearly all end with it.
_ANY_LENGTH = 1 << 30


@dataclass(frozen=True, slots=True)
class Arrivals:
    name: str
    arrival_ns: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


def scaled(trace: Trace, prompt_tokens_max: int, output_tokens_max: int) -> Trace:
    config = TrafficConfig(prompt_tokens_max=prompt_tokens_max, output_tokens_max=output_tokens_max)
    lengths = traces.fit(trace, config.model_copy(update={"requests_per_s_max": float(_ANY_LENGTH)})).trace
    return replace(lengths, name=trace.name.partition(".")[0])


def window(trace: Trace, number: int, seconds: float, requests_per_s: float) -> Arrivals:
    """Return a window of the trace as arrivals. If it has too few requests, a longer window is compressed in time."""
    count = max(1, round(requests_per_s * seconds))
    end_ns = int(trace.arrival_ns[-1])
    length_ns = round(seconds * 1e9)
    begin_ns = number * length_ns % max(1, end_ns - length_ns)
    while True:
        kept = (trace.arrival_ns >= begin_ns) & (trace.arrival_ns < begin_ns + length_ns)
        if kept.sum() >= count or kept.all():
            break
        length_ns *= 2
        begin_ns = max(0, min(begin_ns, end_ns - length_ns))
    part = Trace(trace.name, trace.arrival_ns[kept] - begin_ns, trace.prompt_tokens[kept], trace.output_tokens[kept])
    config = TrafficConfig(
        requests_per_s_max=requests_per_s, prompt_tokens_max=_ANY_LENGTH, output_tokens_max=_ANY_LENGTH, seed=number
    )
    fitted = traces.fit(part, config, duration_s=seconds, time_scale=seconds * 1e9 / length_ns).trace
    at_s = _with_bursts(fitted.arrival_ns / 1e9, seconds) * max(0.5, 1 - _QUIET_S / seconds)
    return Arrivals(
        trace.name,
        tuple(np.rint(at_s * 1e9).astype(np.int64).tolist()),
        tuple(fitted.prompt_tokens.tolist()),
        tuple(fitted.output_tokens.tolist()),
    )


def equal(
    name: str, number: int, seconds: float, requests_per_s: float, prompt_tokens: int, output_tokens: int
) -> Arrivals:
    """Return equal requests, each at a random moment of its own interval. The moments depend on `number`. At equal
    distances all requests would find the same number of others, and a small delay could change this number for all."""
    count = max(1, round(requests_per_s * seconds))
    moments = np.arange(count) + np.random.default_rng(number).random(count)
    arrival_ns = tuple(np.rint(moments / requests_per_s * 1e9).astype(int).tolist())
    return Arrivals(name, arrival_ns, (prompt_tokens,) * count, (output_tokens,) * count)


def _with_bursts(at_s: npt.NDArray[np.float64], seconds: float) -> npt.NDArray[np.float64]:
    """Move times in [0, seconds), in their order, so that a tenth of each minute has three times the mean rate."""
    period_s = min(_BURST_PERIOD_S, seconds)
    calm = (1 - _BURST_SHARE * _BURST_FACTOR) / (1 - _BURST_SHARE)
    # Share of requests by share of the period; the inverse gives arrival times.
    when = np.array([0, _BURST_AT, _BURST_AT + _BURST_SHARE, 1])
    share = np.array([0, _BURST_AT * calm, _BURST_AT * calm + _BURST_SHARE * _BURST_FACTOR, 1])
    whole = np.floor(at_s / period_s)
    length_s = np.minimum(period_s, seconds - whole * period_s)
    inside = np.interp((at_s - whole * period_s) / length_s, share, when)
    moved: npt.NDArray[np.float64] = whole * period_s + length_s * inside
    return moved
