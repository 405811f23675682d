"""Holds: events that nobody deletes, whatever their age, until the hold is released."""

from __future__ import annotations

from pathlib import Path

from rose.clock import utc_us
from rose.errors import did_you_mean
from rose.ledger import catalog, layout
from rose.ledger.approvals import proposals, records, state
from rose.ledger.approvals.state import Hold
from rose.ledger.layout import LedgerError


def add(
    root: Path | str,
    reason: str,
    *,
    run_id: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
) -> Hold:
    """Hold the events of a run, or those of [`since_us`, `until_us`), from the return of this on.

    A file leaves as a whole, so all files with one of these events stay. Raises LedgerError, also for a run of which
    the ledger has no event.
    """
    root = layout.check(root)
    if not reason.strip():
        raise LedgerError("a hold needs a reason; give --reason")
    if (run_id is None) == (since_us is None and until_us is None):
        raise LedgerError("a hold is on a run or on a period: give --run, or --since and --until")
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise LedgerError("the period of the hold ends before it begins; --until is the first day that is not in it")
    if run_id is not None:
        _check_run(root, run_id)
    # Whoever deletes asks for holds under the first of these.
    with layout.moving_parts(root), records.exclusive(root):
        body = {"run": run_id, "since_us": since_us, "until_us": until_us, "reason": reason, "at_us": utc_us()}
        records.append(root, state.HELD, body)
    return list(proposals.load(root).holds.values())[-1]


def _check_run(root: Path, run_id: str) -> None:
    """Raises LedgerError if no event is of this run: a hold on a name that is misspelt would keep nothing."""
    with catalog.connect(root) as connection:
        if connection.execute("SELECT 1 FROM stored_event WHERE run_id = ? LIMIT 1", [run_id]).fetchone() is None:
            rows = connection.execute("SELECT DISTINCT run_id FROM stored_event WHERE run_id IS NOT NULL").fetchall()
            near = did_you_mean(run_id, [name for (name,) in rows])
            raise LedgerError(f"no event in this ledger is of run {run_id!r}{near}")


def release(root: Path | str, text: str, reason: str) -> Hold:
    """Release the hold whose id begins with `text`.

    Raises ApprovalNeededError where the rules ask for an approval of `retain`, and LedgerError.
    """
    root = layout.check(root)
    if not reason.strip():
        raise LedgerError("a release needs a reason; give --reason")
    holds = proposals.load(root).holds
    hold = holds[state.one_id(holds, text, "hold")]
    if hold.released is not None:
        raise LedgerError(f"hold {hold.short_id} was released by {hold.released.text}")
    body, about = {"hold": hold.id, "reason": reason}, {"hold": hold.what, "reason": reason}
    proposals.record(root, "retain", {"release": hold.id}, state.RELEASED, body, about)
    return proposals.load(root).holds[hold.id]
