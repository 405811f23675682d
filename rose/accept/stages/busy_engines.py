"""Measures each policy on two SGLang engines while serving is never idle. Also kills the rollout engine or the
lease's writer while rollouts have credit, which is the right to work beside a serving step."""

import json
import statistics
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rose.accept.coserve import traffic
from rose.accept.coserve.host import ROLLOUT, SERVING
from rose.accept.coserve.keeper import IDLE, ROSE, ROSE_SLACK, SHARE_ALL, SOLO, Keeper
from rose.accept.coserve.rounds import Round, Scene, budgets_of, claim_never_empty, mean_live, order, round_figures
from rose.accept.coserve.worker import Worker
from rose.accept.peer import Peer
from rose.accept.stage import Scope, StageReport
from rose.accept.stages.engines import Parts, background, opened_parts
from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.policy.credit import STRETCH_MAX
from rose.runtime.policy.slack import LeaseTerms

PLAYED = (SOLO, IDLE, ROSE, ROSE_SLACK, SHARE_ALL)
LIVE = {"2 live": 2, "6 live": 6}  # Loads, by the mean of live requests when serving is alone.
KILLED = ("lease's writer", ROLLOUT)
_TOKENS, _GPU_TOKENS = (48, 64), (512, 256)  # Prompt and output of each request.
_RATE_PER_LIVE, _CALIBRATIONS, _BUDGET_FACTOR = 0.4, 2, 3
#: Lengths of a round, its overhead, a calibration, and a kill with the time around it; and a quick run's share of them.
_ROUND_S, _ROUND_EXTRA_S, _CALIBRATION_S, _KILL_S, _QUICK_PART = 25.0, 3.0, 8.0, 20.0, 0.2
_CREDIT_BEFORE_S, _CREDIT_WAIT_S, _LOOK_S, _GONE_S = 2.0, 2.0, 0.0005, 0.2
_WARM_UP, _CALIBRATION = 50, 100  # Numbers of rounds: each has its own prompts, which no prefix cache has.
_KILL_LIVE, _KILL_PROMPT_TOKENS, _KILL_SEED = 2, 32, 7000
_DECODING_S, _DECODED_MAX = 9.0, 1500  # Serving decodes for this long in a kill: until the lease has ended.
#: Steps queued at the end of credit may take longer; the next one has this ratio to one alone.
_QUEUED, _NEXT_TARGET = 2, 1.3


def measure(scope: Scope, report: StageReport) -> None:
    with opened_parts(scope, report) as parts, Worker("rollout") as rollout:
        parts.start()
        busy = _Busy(report, parts, parts.scene(rollout), _TOKENS if scope.gpu is None else _GPU_TOKENS)
        parts.run("rounds", len(KILLED) * _KILL_S, busy.play_rounds)
        for name in KILLED:
            parts.run(f"{name} killed", _KILL_S, partial(busy.kill, name))


class _Busy:
    def __init__(self, report: StageReport, parts: Parts, scene: Scene, tokens: tuple[int, int]) -> None:
        self._report, self._parts, self._scene, self._tokens = report, parts, scene, tokens
        self._part = _QUICK_PART if report.quick else 1.0

    def play_rounds(self) -> None:
        for policy in (SHARE_ALL, ROSE):  # In the first play both engines compile kernels.
            self._play(policy, _WARM_UP, 3.0, 1.0)
        for number, (load, live) in enumerate(LIVE.items()):
            rate_per_s = self._calibrate(live)
            plays = len(PLAYED) * (len(LIVE) - number)
            left_s = (self._parts.left_s - len(KILLED) * _KILL_S) / plays - _ROUND_EXTRA_S
            seconds = max(1.0, min(self._part * _ROUND_S, left_s))
            played = {name: [self._play(name, number, seconds, rate_per_s)] for name in order(PLAYED, number)}
            alone = mean_live(played[SOLO][0], self._arrivals(seconds, rate_per_s))
            self._report.fact(f"{load}: live in the round of serving alone", round(alone, 2))
            self._report.detail[load] = [round_figures(one, self._scene.budgets) for (one,) in played.values()]
            claim_never_empty(self._report, played, self._scene.budgets, f"busy_engines: {load}")

    def _calibrate(self, live: int) -> float:
        """Return the requests/s at which serving alone has `live` requests on average. Also set the latency budgets."""
        rate_per_s, seconds = _RATE_PER_LIVE * live, max(3.0, self._part * _CALIBRATION_S)
        for attempt in range(_CALIBRATIONS):
            one = self._play(SOLO, _CALIBRATION * live + attempt, seconds, rate_per_s)
            rate_per_s *= live / mean_live(one, self._arrivals(seconds, rate_per_s))
        budgets = budgets_of(one, _BUDGET_FACTOR)
        self._scene = replace(self._scene, budgets=budgets, max_prompt_tokens=self._tokens[0])
        return rate_per_s

    def _play(self, policy: str, number: int, seconds: float, rate_per_s: float) -> Round:
        seed = 16 * number + PLAYED.index(policy)
        return self._scene.play(policy, number, self._arrivals(seconds, rate_per_s), seconds, seed)

    def _arrivals(self, seconds: float, rate_per_s: float) -> traffic.Arrivals:
        return traffic.equal("busy", 0, seconds, rate_per_s, *self._tokens)

    def kill(self, name: str) -> None:
        scene, engines, page = self._scene, self._scene.host.engines, self._scene.host.page
        keeper = scene.keeper(ROSE_SLACK)
        terms = (keeper.memory, keeper.policy, keeper.budgets, keeper.max_prompt_tokens, keeper.rollout_tokens)
        tokens = min(_DECODED_MAX, round(_DECODING_S * 1e9 * _BUDGET_FACTOR / keeper.budgets.tpot_ns))
        with Peer("lease's writer", _keeper, page.path, *terms) as writer, Worker("rollout") as rollout:
            writer.tell("start")
            writer.hear()
            rollout.tell(url=engines[ROLLOUT].url, turns=scene.turns, seed=_KILL_SEED)
            decode = partial(token_times, engines[SERVING].url, tokens)
            requests = [background(decode) for _ in range(_KILL_LIVE)]
            time.sleep(_CREDIT_BEFORE_S)
            self._report.fact(f"{name} killed: credit at the time, ms", _credit_ns(page) / 1e6)
            struck_ns = monotonic_ns()
            if name == ROLLOUT:
                engines[ROLLOUT].kill()
            else:
                writer.close()
                struck_ns = page.lease().expires_ns
            time.sleep(max(0.0, (struck_ns - monotonic_ns()) / 1e9) + _GONE_S)
            began_ns = _rollouts_ns(page)
            times = [request.result(_KILL_S) for request in requests]
            work_ns = _rollouts_ns(page) - began_ns
        page.set_lease(LeaseTerms())
        claim_kill(self._report, name, times, struck_ns, work_ns)


def claim_kill(report: StageReport, name: str, times: Sequence[Sequence[int]], struck_ns: int, work_ns: int) -> None:
    """Add claims about the time after the rollouts' credit ended (`struck_ns`) because `name` was killed. `times` has
    each serving request's token times, in ns. `work_ns` is how long rollouts used the device afterwards."""
    after = [[end - begin for begin, end in pairwise(each) if end > struck_ns] for each in times if each]
    report.claim(f"busy_engines: requests failed, {name} killed", len(times) - len(after), "requests", 0, "lower")
    report.claim(f"busy_engines: rollouts' time afterwards, {name} killed", work_ns, "ns", 0, "lower")
    if any(len(lengths) <= _QUEUED for lengths in after):
        raise RuntimeError("a request ended too soon after the rollouts' credit: there is no step to measure")
    relative = [[length / statistics.median(lengths[_QUEUED:]) for length in lengths] for lengths in after]
    longest, following = max(map(max, relative)), max(steps[_QUEUED] for steps in relative)
    report.claim(f"busy_engines: longest step / alone, {name} killed", longest, "x", STRETCH_MAX, "lower")
    report.claim(f"busy_engines: next step / alone, {name} killed", following, "x", _NEXT_TARGET, "lower")


def token_times(url: str, tokens: int) -> list[int]:
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": list(range(_KILL_PROMPT_TOKENS)), "sampling_params": sampling, "stream": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as lines:
            times = [monotonic_ns() for line in lines if line.startswith(b"data: {")]
    except OSError:
        return []
    return times if len(times) > 1 else []


def _credit_ns(page: ArbiterPage) -> int:
    deadline_ns = monotonic_ns() + round(_CREDIT_WAIT_S * 1e9)
    while (credit_ns := page.credit_ns(monotonic_ns())) <= 0 and monotonic_ns() < deadline_ns:
        time.sleep(_LOOK_S)
    return credit_ns


def _rollouts_ns(page: ArbiterPage) -> int:
    return page.get(Party.ROLLOUT, Field.WORK_NS) + page.rollout_worked_ns(monotonic_ns())


def _keeper(_: Connection, page: Path, *terms: Any) -> Keeper:
    return Keeper(ArbiterPage(page), *terms)
