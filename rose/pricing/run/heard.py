"""Whether a run without an end in the ledger has gone silent. Long steps of an RL run may record nothing: while its
fleet is heard of it continues, since the fleet's controller ends a run that expired."""

SILENT = "silent"  #: The status of a run that has no end and was not heard of for too long.
UNKNOWN_S, LEAST_S = 86_400, 300  #: Timeout without a known expiry, and the shortest one: long steps record nothing.


def silent(*, status: str, provenance: str, heard_us: int, expires_s: float | None, now_us: int) -> bool:
    """Return whether a live run has no end, and neither it nor its fleet was heard of for longer than allowed.
    `heard_us` is the last event of either; instants are UTC microseconds."""
    allowed_s = UNKNOWN_S if expires_s is None else max(expires_s, LEAST_S)
    return status == "running" and provenance == "live" and now_us - heard_us > allowed_s * 1_000_000
