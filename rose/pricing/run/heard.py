"""Whether a run that never said it was over still goes on: by when it was last heard of.

An RL run may have long steps that record nothing: while its fleet is heard of it goes on, since the fleet's controller
ends a run that expired.
"""

from __future__ import annotations

#: The status of a run that has no end and was not heard of for too long.
SILENT = "silent"
#: A run whose expiry is not known may be silent for so long, and any run for the least: long steps record nothing.
UNKNOWN_S, LEAST_S = 86_400, 300


def silent(*, status: str, provenance: str, heard_us: int, expires_s: float | None, now_us: int) -> bool:
    """Whether a run has no end in the ledger, and was silent for longer than it may be, as was its fleet.

    `heard_us` is the last event of either; instants are UTC microseconds.

    Times of events that were simulated or replayed are no times at which somebody was heard: of them it is not known.
    """
    allowed_s = UNKNOWN_S if expires_s is None else max(expires_s, LEAST_S)
    return status == "running" and provenance == "live" and now_us - heard_us > allowed_s * 1_000_000
