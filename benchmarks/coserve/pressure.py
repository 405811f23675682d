"""From serving growing past the watermark to the memory being free: cuts under a full load, and what was given back.

Each trial is a lease of its own. Rollouts fill their budget, then serving gets a prompt for which the device's memory,
as the page has it, does not leave the headroom free; the rollout engine cuts itself.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

from benchmarks.coserve import figures
from benchmarks.coserve.host import ROLLOUT, SERVING, Host, is_scheduler
from benchmarks.coserve.keeper import TTL_NS
from benchmarks.coserve.policies import POLICIES, ROSE
from benchmarks.coserve.worker import Worker
from benchmarks.report import Report, phase
from rose.clock import monotonic_ns
from rose.config import CoservingConfig
from rose.runtime.coserving.page import Field, Party
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import Budgets, LeaseTerms

_PROMPT_WORDS = 600
_FILL_TOKENS = 700
_WAIT_S = 10.0
_BUDGETS = Budgets(1 << 60, 1 << 60)


def measure(report: Report, host: Host, client: Worker, turns: int, trials: int) -> None:
    """Claims the 99th percentile over `trials` cuts, and that resident memory is lower after each."""
    host.adopt(POLICIES[ROSE])
    page, taken = host.page, []
    client.tell(url=host.seats[ROLLOUT].engine.url, turns=turns, seed=77)
    with phase(f"memory: {trials} cuts"):
        for trial in range(trials):
            cut = _trial(host, trial)
            if cut is not None:
                taken.append(cut)
            print(f"cut {trial + 1} of {trials}: {cut}", file=sys.stderr, flush=True)
    page.set_lease(LeaseTerms(number=page.lease().number))
    client.tell(stop=True)
    client.hear()
    took_ms = [cut["took_ms"] for cut in taken]
    report.detail["memory"] = {"trials": trials, "cuts": taken}
    value = figures.quantile(took_ms, 0.99) if len(taken) == trials else _WAIT_S * 1e3
    report.claim("high watermark to memory available, p99", value, "ms", 50, "lower")
    lower = sum(cut["resident_after_bytes"] < cut["resident_before_bytes"] for cut in taken)
    report.claim("cuts after which less is resident", lower / trials, "share", 1, "higher")


def _trial(host: Host, trial: int) -> dict[str, Any] | None:
    """One lease that is cut; None if it was not."""
    page = host.page
    number = page.lease().number + 1
    before = 0 if (last := page.cut()) is None else last.count
    roomy = host.memory
    page.set_terms(_BUDGETS, 64, roomy)
    _lend(host, number)
    if not _until(host, number, lambda: page.get(Party.ROLLOUT, Field.KV_TOKENS_USED) >= _FILL_TOKENS):
        return None
    resident = _resident_bytes(host)
    held = page.get(Party.ROLLOUT, Field.KV_TOKENS_USED) * roomy.rollout_bytes_per_token
    # So much that all but the watermark's share of the headroom is free; the prompt takes more than that.
    needed = _PROMPT_WORDS * roomy.serving_bytes_per_token
    device = int((held + needed) / (1 - roomy.headroom * (1 - roomy.high_watermark)))
    page.set_terms(_BUDGETS, 64, replace(roomy, device_bytes=device))
    text = " ".join(f"word{(trial * 31 + index) % 997}" for index in range(_PROMPT_WORDS // 2))
    host.seats[SERVING].engine.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 4}})
    found = _until(host, number, lambda: (cut := page.cut()) is not None and cut.count > before)
    cut = page.cut()
    if not found or cut is None:
        return None
    return {
        "took_ms": cut.took_ns / 1e6,
        "tokens_before": cut.tokens_before,
        "tokens_after": cut.tokens_after,
        "requests": cut.requests,
        "tokens_kept": cut.tokens_kept,
        "resident_before_bytes": resident,
        "resident_after_bytes": _resident_bytes(host),
    }


def _lend(host: Host, number: int) -> None:
    terms = LeaseTerms(
        number=number,
        expires_ns=monotonic_ns() + TTL_NS,
        compute_share=1.0,
        kv_budget_tokens=2 * _FILL_TOKENS,
        regret_share=CoservingConfig().regret_share,
        policy=NAMES.index(ROSE),
    )
    host.page.set_lease(terms)


def _until(host: Host, number: int, met: Any) -> bool:
    """Wait for it with the lease kept up; False if it did not come."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        if met():
            return True
        _lend(host, number)
        time.sleep(0.01)
    return False


def _resident_bytes(host: Host) -> int:
    return sum(process.memory_info().rss for process in host.processes(ROLLOUT) if is_scheduler(process))
