"""How fast a revoked lease gave way, in the same words wherever it is shown."""

from __future__ import annotations

from dashboard.preemptions.totals import duration

#: What the two times are.
ABOUT = (
    "Off the device: from serving's wish for it until the rollout was off it. Closed: until the end of the lease was "
    "in the ledger."
)


def cards(off_device_ms: float | None, closed_after_ms: float | None) -> list[tuple[str, str]]:
    """Label and value of both times of a revocation."""
    in_order = closed_after_ms is not None and closed_after_ms >= 0
    closed = "at once" if closed_after_ms == 0 else text(closed_after_ms if in_order else None)
    return [("Off the device after", text(off_device_ms)), ("Lease closed after", closed)]


def text(ms: float | None) -> str:
    """A time of a reaction."""
    return "unknown" if ms is None else duration(ms)
