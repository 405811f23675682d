"""Whether a run without an end in the ledger has gone silent. Long steps of an RL run may record nothing: the run
counts as running while its fleet records events, since the fleet's controller ends an expired run."""

SILENT = "silent"  #: The status of a run that has no end and records nothing for too long.
UNKNOWN_S, LEAST_S = 86_400, 300  #: Timeout without a known expiry, and the shortest one: long steps record nothing.


def silent(*, status: str, provenance: str, heard_us: int, expires_s: float | None, now_us: int) -> bool:
    """Return whether a live run has no end, and neither it nor its fleet recorded events within the timeout.
    `heard_us` is their last event; instants are UTC microseconds."""
    allowed_s = UNKNOWN_S if expires_s is None else max(expires_s, LEAST_S)
    return status == "running" and provenance == "live" and now_us - heard_us > allowed_s * 1_000_000
