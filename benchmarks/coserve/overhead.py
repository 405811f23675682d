"""Measures the plugin's cost for a serving engine that lends nothing, attached and detached in turns."""

import statistics
from typing import Any

from benchmarks.coserve import account
from rose.accept.coserve.host import SERVING, Host
from rose.accept.coserve.rounds import LATENCIES, Latency, serving_command
from rose.accept.coserve.traffic import Arrivals
from rose.accept.coserve.worker import Worker
from rose.accept.report import Report, phase
from rose.events import Request
from rose.runtime.coserving.attach.attaching import OwnedEngine
from rose.terminal import echo

_PROMPT_TOKENS, _OUTPUT_TOKENS = 48, 24
_SEED = 1_000_000
_WARM_UP = 2
_ATTACHED, _DETACHED = "attached", "detached"
_CASES = (_ATTACHED, _DETACHED)
_Trial = dict[str, Request]


def measure(report: Report, host: Host, client: Worker, starts: int, trials: int) -> None:
    """Claim the median over all trials of new engines."""
    every: list[_Trial] = []
    for number in range(starts):
        with phase(f"the plugin's own cost, start {number + 1} of {starts}"):
            host.stop(list(host.engines))
            start(host, [SERVING])
            some = _trials(host, client, trials, _SEED * (number + 1))
            every += some
            echo(f"TPOT ratio {statistics.median(_ratios(some, LATENCIES['TPOT'])):.3f}", err=True)
    detail: dict[str, Any] = {"starts": starts, "trials": trials}
    for what, latency in LATENCIES.items():
        ratios = _ratios(every, latency)
        report.claim(f"{what}, plugin attached / detached, nothing lent", statistics.median(ratios), "x", 1.01, "lower")
        detail[what] = account.summary(ratios)
    report.detail["plugin"] = detail


def start(host: Host, names: list[str]) -> None:
    for name in names:
        host.launch(name)
        if host.gpu is not None:  # Each takes a share of the memory that is free at its start.
            host.engines[name].wait_ready()
    for name in names:
        host.wait_ready(name)


def _trials(host: Host, client: Worker, trials: int, seed: int) -> list[_Trial]:
    arrivals = Arrivals("plugin", (0,), (_PROMPT_TOKENS,), (_OUTPUT_TOKENS,))
    url = host.engines[SERVING].url
    owned = OwnedEngine(url)
    served: list[_Trial] = []
    for number in range(_WARM_UP + trials):
        trial: _Trial = {}
        for index, case in enumerate(_CASES[:: -1 if number % 2 else 1]):
            if case == _ATTACHED:
                owned.attach(host.page.path)
            else:
                owned.detach(by_owner=False)
            # Each prompt has the same length and other words, so that no prefix cache has it.
            client.tell(**serving_command(url, arrivals, seed + number * len(_CASES) + index))
            client.hear()
            (trial[case],) = client.hear()["requests"]
        served.append(trial)
    return served[_WARM_UP:]


def _ratios(trials: list[_Trial], latency: Latency) -> list[float]:
    pairs = [(latency(trial[_ATTACHED]), latency(trial[_DETACHED])) for trial in trials]
    return [over / under for over, under in pairs if over and under]
