"""Serving's arrivals: windows of a trace, fitted to the device, each with a burst of three times the mean rate."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rose.accept.report import ROOT
from rose.config import TrafficConfig
from rose.runtime.traffic import trace as traces
from rose.runtime.traffic.trace import Ints, Trace

#: Recorded traffic, where it lies beside the checkout; the sample trace otherwise.
RECORDED = ROOT.parent / "shared" / "traces" / "mooncake_conversation.jsonl.gz"
SAMPLE = ROOT / "sample_traces" / "bursty.csv"
#: The 99th percentiles of the lengths that a core can serve many of in a minute.
CORE_TOKENS_MAX = (192, 24)
#: And a GPU that runs a model of 8 billion parameters.
GPU_TOKENS_MAX = (2048, 48)
BURST_FACTOR, BURST_SHARE, BURST_AT = 3.0, 0.1, 0.6
_BURST_PERIOD_S = 60.0
#: No request comes in the last part of a round, so that nearly all have ended with it.
_QUIET_S = 1.5
_ANY_LENGTH = 1 << 30
#: Mooncake's timestamps are of this grain: requests within it are spread evenly at random.
_MOONCAKE_GRAIN_MS = 3000


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The requests of one round: nanoseconds after its start, and lengths in tokens."""

    name: str
    arrival_ns: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


def default_trace() -> Path:
    """The recorded trace beside the checkout, or else the sample trace."""
    return RECORDED if RECORDED.is_file() else SAMPLE


def load(path: Path, prompt_tokens_max: int, output_tokens_max: int) -> Trace:
    """A trace with its lengths scaled to these 99th percentiles: a CSV file, or Mooncake's JSON lines, zipped or not.

    Raises TraceError for a CSV file that cannot be used.
    """
    whole = _mooncake(path) if ".jsonl" in path.suffixes else traces.read(path)
    config = TrafficConfig(prompt_tokens_max=prompt_tokens_max, output_tokens_max=output_tokens_max)
    lengths = traces.fit(whole, config.model_copy(update={"requests_per_s_max": float(_ANY_LENGTH)})).trace
    return replace(lengths, name=path.name.partition(".")[0])


def window(trace: Trace, number: int, seconds: float, requests_per_s: float) -> Arrivals:
    """The arrivals of round `number`: windows follow one another in the trace, and begin over at its end.

    Where the trace has fewer requests than are wanted, its time is compressed.
    """
    wanted = max(1, round(requests_per_s * seconds))
    end_ns = int(trace.arrival_ns[-1])
    length_ns = round(seconds * 1e9)
    begin_ns = number * length_ns % max(1, end_ns - length_ns)
    while True:
        kept = (trace.arrival_ns >= begin_ns) & (trace.arrival_ns < begin_ns + length_ns)
        if kept.sum() >= wanted or kept.all():
            break
        length_ns *= 2
        begin_ns = max(0, min(begin_ns, end_ns - length_ns))
    part = Trace(trace.name, trace.arrival_ns[kept] - begin_ns, trace.prompt_tokens[kept], trace.output_tokens[kept])
    config = TrafficConfig(
        requests_per_s_max=requests_per_s, prompt_tokens_max=_ANY_LENGTH, output_tokens_max=_ANY_LENGTH, seed=number
    )
    fitted = traces.fit(part, config, duration_s=seconds, time_scale=seconds * 1e9 / length_ns).trace
    at_s = with_bursts(fitted.arrival_ns / 1e9, seconds) * max(0.5, 1 - _QUIET_S / seconds)
    return Arrivals(
        trace.name,
        tuple(np.rint(at_s * 1e9).astype(np.int64).tolist()),
        tuple(fitted.prompt_tokens.tolist()),
        tuple(fitted.output_tokens.tolist()),
    )


def with_bursts(at_s: npt.NDArray[np.float64], seconds: float) -> npt.NDArray[np.float64]:
    """Times in [0, seconds) moved so that a tenth of each minute has three times the mean rate; order is kept."""
    period_s = min(_BURST_PERIOD_S, seconds)
    calm = (1 - BURST_SHARE * BURST_FACTOR) / (1 - BURST_SHARE)
    # Share of the requests by share of the period: its inverse tells when each is due.
    when = np.array([0, BURST_AT, BURST_AT + BURST_SHARE, 1])
    share = np.array([0, BURST_AT * calm, BURST_AT * calm + BURST_SHARE * BURST_FACTOR, 1])
    whole = np.floor(at_s / period_s)
    length_s = np.minimum(period_s, seconds - whole * period_s)
    moved: npt.NDArray[np.float64] = whole * period_s + length_s * np.interp(
        (at_s - whole * period_s) / length_s, share, when
    )
    return moved


def _mooncake(path: Path) -> Trace:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [json.loads(line) for line in text.splitlines() if line]
    at_ms = np.array([row["timestamp"] for row in rows], np.float64)
    at_ms += np.random.default_rng(0).uniform(0, _MOONCAKE_GRAIN_MS, len(rows))
    order = np.argsort(at_ms, kind="stable")
    arrival: Ints = np.rint((at_ms[order] - at_ms.min()) * 1e6).astype(np.int64)
    prompt, output = (np.array([row[name] for row in rows], np.int64) for name in ("input_length", "output_length"))
    return Trace(path.stem, arrival, np.maximum(1, prompt[order]), np.maximum(1, output[order]))
