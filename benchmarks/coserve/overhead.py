"""What the plugin costs a serving engine that lends nothing: attached to a page, and let go of again.

It is one engine in both cases, since two processes of the same program differ by some percent in speed for as long as
they live (where their memory lies). Requests of one size go to it attached and detached, in turns, so that what a
shared host does over minutes hits both. Beside it, on the same core, an engine without the plugin gets one too: by how
much the two differ from one start to the next is in the detail.
"""

from __future__ import annotations

import statistics
from typing import Any

from rose.accept.coserve import figures
from rose.accept.coserve.host import SERVING, Host
from rose.accept.coserve.policies import BARE, INSTALLED
from rose.accept.coserve.rounds import Served, as_served, serving_command
from rose.accept.coserve.traffic import Arrivals
from rose.accept.coserve.worker import Worker
from rose.accept.report import Report, phase
from rose.runtime.coserving.attach.attaching import OwnedEngine
from rose.terminal import echo

_PROMPT_TOKENS, _OUTPUT_TOKENS = 48, 24
_SEED = 1_000_000
_WARM_UP = 2
_DETACHED = "detached"
_CASES = (INSTALLED, _DETACHED, BARE)
_Trial = dict[str, Served]


def measure(report: Report, host: Host, client: Worker, starts: int, trials: int) -> None:
    """Claims the median over all trials. The host's engines are stopped first."""
    started: list[list[_Trial]] = []
    for start in range(starts):
        with phase(f"the plugin's own cost, start {start + 1} of {starts}"):
            host.stop(list(host.seats))
            host.start(sorted((SERVING, BARE), reverse=bool(start % 2)))
            started.append(_trials(host, client, trials, _SEED * (start + 1)))
            echo(f"TPOT ratio {statistics.median(_ratios(started[-1], figures.tpot)):.3f}", err=True)
    every = [trial for trials_of in started for trial in trials_of]
    detail: dict[str, Any] = {
        "starts": starts,
        "trials": trials,
        "prompt_tokens": _PROMPT_TOKENS,
        "output_tokens": _OUTPUT_TOKENS,
    }
    for what, latency in figures.LATENCIES.items():
        ratios = _ratios(every, latency)
        report.claim(f"{what}, plugin attached / detached, nothing lent", statistics.median(ratios), "x", 1.01, "lower")
        detail[what] = {
            "attached_to_detached": figures.summary(ratios),
            "installed_to_bare_by_start": [
                statistics.median(_ratios(trials_of, latency, BARE)) for trials_of in started
            ],
            "median_ms": {
                name: statistics.median(value / 1e6 for trial in every if (value := latency(trial[name])) is not None)
                for name in _CASES
            },
        }
    report.detail["plugin"] = detail


def _trials(host: Host, client: Worker, trials: int, seed: int) -> list[_Trial]:
    arrivals = Arrivals("plugin", (0,), (_PROMPT_TOKENS,), (_OUTPUT_TOKENS,))
    owned = OwnedEngine(host.seats[SERVING].engine.url)
    served: list[_Trial] = []
    for number in range(_WARM_UP + trials):
        trial: _Trial = {}
        for index, case in enumerate(_CASES[:: -1 if number % 2 else 1]):
            if case == INSTALLED:
                owned.attach(host.page.path)
            elif case == _DETACHED:
                owned.detach(by_owner=False)
            url = host.seats[BARE if case == BARE else SERVING].engine.url
            # Of one length, and of other words each time: none of it is in a prefix cache.
            client.tell(**serving_command(url, arrivals, seed + number * len(_CASES) + index))
            client.hear()
            (request,) = client.hear()["requests"]
            trial[case] = as_served(request)
        served.append(trial)
    return served[_WARM_UP:]


def _ratios(trials: list[_Trial], latency: figures.Latency, to: str = _DETACHED) -> list[float]:
    return [over / under for trial in trials if (over := latency(trial[INSTALLED])) and (under := latency(trial[to]))]
