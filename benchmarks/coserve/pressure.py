"""Time from serving growing past the watermark until the rollout engine has cut itself and the system has the pages."""

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rose.accept.coserve.host import ROLLOUT, SERVING, Host
from rose.accept.coserve.keeper import POLICIES, ROSE, TTL_NS
from rose.accept.coserve.rounds import QUANTILES, quantile
from rose.accept.coserve.worker import Worker
from rose.accept.report import Report, phase
from rose.clock import monotonic_ns
from rose.config import CoservingConfig
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.platform.placement import is_scheduler
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import Budgets, LeaseTerms
from rose.terminal import echo

_PROMPT_TOKENS, _TOKEN_IDS, _NEW_TOKENS = 600, (1000, 40000), 4
#: Tokens of requests before a trial, and of requests and prefix cache; a cut gives back those beyond the budget.
_FILL_TOKENS, _CACHE_TOKENS, _BUDGET_TOKENS = 700, 4000, 1400
_WARM_UP = 6
_WAIT_S = 10.0
_FILL_S = 60.0  # A slow core needs this long until rollouts hold so many tokens.
_SAMPLE_S = 0.002
_BUDGETS = Budgets(1 << 60, 1 << 60)


def measure(report: Report, host: Host, client: Worker, turns: int, trials: int) -> None:
    """Claim the 99th percentile over `trials` cuts, and lower resident memory after each."""
    host.adopt(POLICIES[ROSE])
    for number in range(_WARM_UP):  # Nothing is lent beside a serving engine whose step times are unknown.
        _serve(host, -1 - number, _PROMPT_TOKENS >> number, _NEW_TOKENS)
    cuts: list[dict[str, Any]] = []
    client.tell(url=host.engines[ROLLOUT].url, turns=turns, seed=77)
    with phase(f"memory: {trials} cuts"):
        for trial in range(trials):
            cut = _trial(host, trial)
            if cut is not None:
                cuts.append(cut)
            echo(f"cut {trial + 1} of {trials}: {cut}", err=True)
    host.page.set_lease(LeaseTerms(number=host.page.lease().number))
    client.tell(stop=True)
    client.hear()
    claim(report, cuts, trials)


def claim(report: Report, cuts: list[dict[str, Any]], trials: int) -> None:
    """Make the claims; a trial without a cut counts as one of _WAIT_S."""
    took_ms = [cut["took_ms"] for cut in cuts] + [_WAIT_S * 1e3] * (trials - len(cuts))
    given_back = [cut["resident_before_bytes"] - cut["resident_after_bytes"] for cut in cuts]
    report.detail["memory"] = {
        "trials": trials,
        "took_ms": {f"p{share * 100:g}": quantile(took_ms, share) for share in QUANTILES},
        "given_back_bytes_median": statistics.median(given_back) if given_back else None,
        "cuts": cuts,
    }
    if not report.quick:
        report.claim("high watermark to memory available, p99", quantile(took_ms, 0.99), "ms", 50, "lower")
    smaller = sum(size > 0 for size in given_back) / trials
    report.claim("cuts after which less is resident", smaller, "share", 1, "higher")


def _trial(host: Host, trial: int) -> dict[str, Any] | None:
    page, roomy = host.page, host.memory
    number = page.lease().number + 1
    page.set_terms(_BUDGETS, 64, roomy)
    _lend(host, number)
    if not _until(host, number, lambda: _filled(page)):
        return None
    # Room for all tokens of rollouts, and nearly for the prompt, but not for both.
    room_bytes = _PROMPT_TOKENS * roomy.serving_bytes_per_token * 99 // 100
    assert room_bytes > _BUDGET_TOKENS * roomy.rollout_bytes_per_token, "the prompt is what presses"
    device_bytes = int(room_bytes / (1 - roomy.headroom * (1 - roomy.high_watermark)))
    with _sampled(host) as resident:
        page.set_terms(_BUDGETS, 64, replace(roomy, device_bytes=device_bytes))
        _serve(host, trial, _PROMPT_TOKENS, _NEW_TOKENS)
        cut = page.cut()
        if cut is None or cut.lease_number != number:
            return None
    return {
        "took_ms": cut.took_ns / 1e6,
        "resident_before_bytes": [size for at_ns, size in resident if at_ns <= cut.at_ns - cut.took_ns][-1],
        "resident_after_bytes": next(size for at_ns, size in resident if at_ns >= cut.at_ns),
    }


def _filled(page: ArbiterPage) -> bool:
    used, cached = (page.get(Party.ROLLOUT, word) for word in (Field.KV_TOKENS_USED, Field.KV_TOKENS_CACHED))
    return used >= _FILL_TOKENS and used + cached >= _CACHE_TOKENS


def _serve(host: Host, seed: int, prompt_tokens: int, new_tokens: int) -> None:
    draw = random.Random(seed)
    prompt = [draw.randrange(*_TOKEN_IDS) for _ in range(prompt_tokens)]
    sampling = {"max_new_tokens": new_tokens, "ignore_eos": True}
    host.engines[SERVING].post("/generate", {"input_ids": prompt, "sampling_params": sampling})


def _lend(host: Host, number: int) -> None:
    terms = LeaseTerms(
        number=number,
        expires_ns=monotonic_ns() + TTL_NS,
        compute_share=1.0,
        kv_budget_tokens=_BUDGET_TOKENS,
        regret_share=CoservingConfig().regret_share,
        policy=NAMES.index(ROSE),
    )
    host.page.set_lease(terms)


def _until(host: Host, number: int, met: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _FILL_S
    while time.monotonic() < deadline:
        _lend(host, number)
        if met():
            return True
        time.sleep(0.01)
    return False


@contextmanager
def _sampled(host: Host) -> Iterator[list[tuple[int, int]]]:
    """Yield a growing list of (moment, resident bytes) of the rollout engine's scheduler."""
    (scheduler,) = (process for process in host.engines[ROLLOUT].processes() if is_scheduler(process))
    resident, stopping = list[tuple[int, int]](), threading.Event()

    def sample() -> None:
        while True:
            began = monotonic_ns()
            resident.append((began, scheduler.memory_info().rss))
            if stopping.wait(_SAMPLE_S):
                return

    thread = threading.Thread(target=sample, name="resident", daemon=True)
    thread.start()
    try:
        yield resident
    finally:
        stopping.set()
        thread.join()
