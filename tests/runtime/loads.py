"""What a serving engine says of itself, for tests to vary."""

from __future__ import annotations

from rose.runtime.policy.slack import ServingLoad

#: Nobody is served, and a step takes a millisecond.
IDLE = ServingLoad(
    wanted=False,
    waiting=0,
    waiting_prefill_ns=0,
    earliest_arrival_ns=0,
    running=0,
    oldest_token_ns=0,
    decode_ns=1_000_000,
    largest_prefill_ns=1_000_000,
    usual_prefill_ns=1_000_000,
    regret_room_ns=0,
    worked_ns=0,
    finished=0,
    late_alone=0,
    late_by_lending=0,
)
