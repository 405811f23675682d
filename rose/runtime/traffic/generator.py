"""Makes the sample trace: bursty serving traffic with long-tailed lengths, the same bytes for the same arguments.

Arrivals are a Markov-modulated Poisson process: the rate jumps between calm and burst, each of which lasts an
exponential time, under a slow swing that stands for the day. Lengths are lognormal. Only `random.Random.random` is
drawn from, whose sequence Python guarantees for a seed, and all distributions are computed from it here.

    python -m rose.runtime.traffic.generator --seed 7 --minutes 40 --out sample_traces/bursty.csv
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from rose.runtime.traffic.trace import COLUMNS
from rose.terminal import echo

#: The date says nothing; the public traces begin with one too.
_BEGIN = datetime(2026, 1, 5, 9, 0, 0)
_TICKS_PER_S = 10_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A lognormal length in tokens, clipped to [1, tokens_max]."""

    median: float
    sigma: float
    tokens_max: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The process. The mean rate is `requests_per_s`; within a burst it is `burst_factor` times that of a calm."""

    requests_per_s: float = 1.5
    burst_factor: float = 3.0
    calm_s_mean: float = 20.0
    burst_s_mean: float = 6.0
    swing_share: float = 0.3
    swing_period_s: float = 600.0
    prompt: Lengths = Lengths(median=1000, sigma=0.65, tokens_max=8192)
    output: Lengths = Lengths(median=130, sigma=0.65, tokens_max=1024)

    @property
    def calm_requests_per_s(self) -> float:
        """The rate in a calm that gives the mean rate over calms and bursts."""
        cycle_s = self.calm_s_mean + self.burst_s_mean
        return self.requests_per_s * cycle_s / (self.calm_s_mean + self.burst_factor * self.burst_s_mean)


def generate(seed: int, minutes: float, shape: Shape = Shape()) -> str:
    """The trace as CSV text, lines ended by a newline; timestamps in steps of 100 ns as in the public traces."""
    draw = random.Random(seed)  # noqa: S311 (traffic, not secrets)
    lines = [",".join(COLUMNS)]
    end_s = minutes * 60
    now_s = 0.0
    bursting = False
    switch_s = _exponential(draw, shape.calm_s_mean)
    while now_s < end_s:
        rate = shape.calm_requests_per_s * (shape.burst_factor if bursting else 1.0)
        # Candidates at the highest rate of the swing, of which the swing keeps a share: thinning (Lewis and Shedler).
        peak = rate * (1 + shape.swing_share)
        candidate_s = now_s + _exponential(draw, 1 / peak)
        if candidate_s >= switch_s:  # Exponential gaps have no memory: begin anew in the other state.
            now_s, bursting = switch_s, not bursting
            switch_s = now_s + _exponential(draw, shape.burst_s_mean if bursting else shape.calm_s_mean)
            continue
        now_s = candidate_s
        swing = 1 + shape.swing_share * math.sin(2 * math.pi * now_s / shape.swing_period_s)
        if now_s < end_s and draw.random() * peak < rate * swing:
            prompt, output = _length(draw, shape.prompt), _length(draw, shape.output)
            lines.append(f"{_timestamp(now_s)},{prompt},{output}")
    return "\n".join(lines) + "\n"


def _exponential(draw: random.Random, mean: float) -> float:
    return -math.log(1 - draw.random()) * mean


def _length(draw: random.Random, lengths: Lengths) -> int:
    # Box and Muller: one normal deviate from two uniform ones.
    normal = math.sqrt(-2 * math.log(1 - draw.random())) * math.cos(2 * math.pi * draw.random())
    return min(lengths.tokens_max, max(1, round(lengths.median * math.exp(lengths.sigma * normal))))


def _timestamp(after_s: float) -> str:
    ticks = round(after_s * _TICKS_PER_S)
    moment = _BEGIN + timedelta(seconds=ticks // _TICKS_PER_S)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ticks % _TICKS_PER_S:07d}"


def main(
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 7,
    minutes: Annotated[float, typer.Option(help="Length of the trace.", min=0.1)] = 40,
) -> None:
    """Write a bursty serving trace in the columns of the public Azure LLM inference traces."""
    text = generate(seed, minutes)
    out.write_text(text, encoding="utf-8", newline="\n")
    echo(f"{out}: {text.count(chr(10)) - 1} requests over {minutes:g} minutes")


if __name__ == "__main__":
    typer.run(main)
