"""What the plugin costs a serving engine that lends nothing, beside the same engine without it.

Both engines are up on the same core. The same request goes to one and then to the other, in turns; the figure is of
pairs, so that what a shared host does over minutes hits both.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.coserve import figures
from benchmarks.coserve.host import Host
from benchmarks.coserve.policies import BARE, INSTALLED
from benchmarks.coserve.rounds import Served, as_served, serving_command
from benchmarks.coserve.traffic import Arrivals
from benchmarks.coserve.worker import Worker
from benchmarks.report import Report

_PROMPT_TOKENS, _OUTPUT_TOKENS = 48, 24
_SEED = 1_000_000
_SEATS = {INSTALLED: "serving", BARE: "bare"}


def measure(report: Report, host: Host, client: Worker, pairs: int) -> None:
    """Needs the engines `serving` and `bare`; claims the median of the pairs' ratios."""
    arrivals = Arrivals("plugin", (0,), (_PROMPT_TOKENS,), (_OUTPUT_TOKENS,))
    served: dict[str, list[Served]] = {name: [] for name in _SEATS}
    for seat in _SEATS.values():
        host.seats[seat].engine.post("/flush_cache", {})  # One of them may have served for long.
    for pair in range(-2, pairs):  # The first two are to warm up.
        for name in sorted(_SEATS, reverse=bool(pair % 2)):
            client.tell(**serving_command(host.seats[_SEATS[name]].engine.url, arrivals, _SEED + pair))
            client.hear()
            (request,) = client.hear()["requests"]
            if pair >= 0:
                served[name].append(as_served(request))
    detail: dict[str, Any] = {"pairs": pairs, "prompt_tokens": _PROMPT_TOKENS, "output_tokens": _OUTPUT_TOKENS}
    for what, latency in figures.LATENCIES.items():
        ratios = [
            over / under
            for installed, bare in zip(served[INSTALLED], served[BARE], strict=True)
            if (over := latency(installed)) and (under := latency(bare))
        ]
        report.claim(f"{what}, plugin installed / bare, nothing lent", statistics.median(ratios), "x", 1.01, "lower")
        detail[what] = {
            "ratio": figures.summary(ratios),
            "median_ms": {
                name: statistics.median(value / 1e6 for each in requests if (value := latency(each)))
                for name, requests in served.items()
            },
        }
    report.detail["plugin"] = detail
