"""May a rollout step run now on a device that serves? Serving first, always.

For every serving request: prefill slack = (arrival + TTFT budget) - now - T_prefill(request), decode slack =
(last token + TPOT budget) - now - T_decode(batch). A rollout step is admitted only if every slack stays positive
after the step's own predicted time, and the next serving request, as large as the configured largest, would still
meet its TTFT budget if it arrived just as the step began.

Predictions come from steps that ran. One slow moment can make a step look as if it never fitted, and then no step
would run that could show otherwise: so a step that was held for PROBE_AFTER_NS by that alone, while serving has
nothing to do, is let through as a probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

#: How long the next request's prediction alone may hold a step of an otherwise unused device.
PROBE_AFTER_NS = 2_000_000_000


class Hold(IntEnum):
    """Why a rollout step was not admitted. The numbers are stable: they travel through the arbiter page."""

    NONE = 0
    NO_LEASE = 1
    SERVING_STEP = 2
    PREFILL_SLACK = 3
    DECODE_SLACK = 4
    NEXT_REQUEST = 5
    COMPUTE_SHARE = 6
    KV_BUDGET = 7


@dataclass(frozen=True, slots=True)
class ServingLoad:
    """What the serving engine is doing. Times are monotonic nanoseconds, 0 meaning none."""

    in_step: bool
    waiting: int
    #: T_prefill of all waiting requests together, as the serving engine predicts it.
    waiting_prefill_ns: int
    earliest_arrival_ns: int
    running: int
    #: When the running request that has waited longest for a token got its last one.
    oldest_token_ns: int
    #: T_decode of the running batch.
    decode_ns: int
    #: T_prefill of the largest request that the configuration promises room for.
    largest_prefill_ns: int


@dataclass(frozen=True, slots=True)
class Budgets:
    """Latency promised to serving requests, in nanoseconds."""

    ttft_ns: int
    tpot_ns: int


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """A rollout engine's permission, as it stands on the arbiter page. `expires_ns` is monotonic; 0 is no lease."""

    expires_ns: int
    compute_share: float
    kv_budget_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    admitted: bool
    hold: Hold
    #: The smallest slack left after the step, in nanoseconds; meaningful when the decision was about slack.
    slack_ns: int


def prefill_slack_ns(load: ServingLoad, budgets: Budgets, now_ns: int) -> int | None:
    """Slack of the oldest waiting request; None when none waits."""
    if load.waiting == 0:
        return None
    return load.earliest_arrival_ns + budgets.ttft_ns - now_ns - load.waiting_prefill_ns


def decode_slack_ns(load: ServingLoad, budgets: Budgets, now_ns: int) -> int | None:
    """Slack of the running request that has waited longest for a token; None when none runs."""
    if load.running == 0:
        return None
    return load.oldest_token_ns + budgets.tpot_ns - now_ns - load.decode_ns


def admit(
    load: ServingLoad,
    budgets: Budgets,
    lease: LeaseTerms,
    *,
    step_ns: int,
    kv_tokens: int,
    busy_share: float,
    held_ns: int,
    now_ns: int,
) -> Decision:
    """Decide on one rollout step of predicted length `step_ns`, held for `held_ns` so far.

    `kv_tokens` is what the rollout engine holds now and `busy_share` the share of the last second it worked.
    """
    if lease.expires_ns <= now_ns:
        return Decision(False, Hold.NO_LEASE, 0)
    if load.in_step:
        return Decision(False, Hold.SERVING_STEP, 0)
    if kv_tokens > lease.kv_budget_tokens:
        return Decision(False, Hold.KV_BUDGET, 0)
    if busy_share > lease.compute_share:
        return Decision(False, Hold.COMPUTE_SHARE, 0)
    slack = budgets.ttft_ns - step_ns - load.largest_prefill_ns
    if slack <= 0:
        unused = load.waiting == 0 and load.running == 0
        if unused and held_ns >= PROBE_AFTER_NS:
            return Decision(True, Hold.NONE, slack)
        return Decision(False, Hold.NEXT_REQUEST, slack)
    for hold, left in (
        (Hold.PREFILL_SLACK, prefill_slack_ns(load, budgets, now_ns)),
        (Hold.DECODE_SLACK, decode_slack_ns(load, budgets, now_ns)),
    ):
        if left is not None:
            slack = min(slack, left - step_ns)
            if slack <= 0:
                return Decision(False, hold, slack)
    return Decision(True, Hold.NONE, slack)
