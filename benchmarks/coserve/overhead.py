"""What the plugin costs a serving engine that lends nothing, beside the same engine without it.

Both engines are up on the same core. The same request goes to one and then to the other, in turns, so that what a
shared host does over minutes hits both. Two processes of the same program differ by some percent in speed for as long
as they live (where their memory lies); so both are started several times, and the figure is of starts, not of pairs.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks.coserve import figures
from benchmarks.coserve.host import Host
from benchmarks.coserve.policies import BARE, INSTALLED
from benchmarks.coserve.rounds import Served, as_served, serving_command
from benchmarks.coserve.traffic import Arrivals
from benchmarks.coserve.worker import Worker
from benchmarks.report import Report, phase

_PROMPT_TOKENS, _OUTPUT_TOKENS = 48, 24
_SEED = 1_000_000
_WARM_UP_PAIRS = 2
_SEATS = {INSTALLED: "serving", BARE: "bare"}
_Pair = dict[str, Served]


def measure(report: Report, host: Host, client: Worker, starts: int, pairs: int) -> None:
    """Claims the median over `starts` of the median ratio of `pairs`. The host's engines are stopped first."""
    started: list[list[_Pair]] = []
    for start in range(starts):
        with phase(f"the plugin's own cost, start {start + 1} of {starts}"):
            host.stop(list(host.seats))
            host.start(sorted(_SEATS.values(), reverse=bool(start % 2)))
            started.append(_pairs(host, client, pairs, _SEED * (start + 1)))
            print(f"TPOT ratio {statistics.median(_ratios(started[-1], figures.tpot)):.3f}", file=sys.stderr)
    detail: dict[str, Any] = {
        "starts": starts, "pairs": pairs, "prompt_tokens": _PROMPT_TOKENS, "output_tokens": _OUTPUT_TOKENS,
    }  # fmt: skip
    for what, latency in figures.LATENCIES.items():
        medians = [statistics.median(_ratios(each, latency)) for each in started]
        report.claim(f"{what}, plugin installed / bare, nothing lent", statistics.median(medians), "x", 1.01, "lower")
        detail[what] = {
            "ratio_by_start": figures.summary(medians),
            "ratio_of_pairs": [figures.summary(_ratios(each, latency)) for each in started],
            "median_ms": {
                name: statistics.median(
                    value / 1e6 for each in started for pair in each if (value := latency(pair[name])) is not None
                )
                for name in _SEATS
            },
        }
    report.detail["plugin"] = detail


def _pairs(host: Host, client: Worker, pairs: int, seed: int) -> list[_Pair]:
    arrivals = Arrivals("plugin", (0,), (_PROMPT_TOKENS,), (_OUTPUT_TOKENS,))
    served: list[_Pair] = []
    for number in range(_WARM_UP_PAIRS + pairs):
        pair: _Pair = {}
        for name in sorted(_SEATS, reverse=bool(number % 2)):
            client.tell(**serving_command(host.seats[_SEATS[name]].engine.url, arrivals, seed + number))
            client.hear()
            (request,) = client.hear()["requests"]
            pair[name] = as_served(request)
        served.append(pair)
    return served[_WARM_UP_PAIRS:]


def _ratios(pairs: list[_Pair], latency: figures.Latency) -> list[float]:
    return [over / under for pair in pairs if (over := latency(pair[INSTALLED])) and (under := latency(pair[BARE]))]
