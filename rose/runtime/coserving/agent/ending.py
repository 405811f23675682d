"""The end of a device in the ledger, where no agent of it is there to say it."""

from __future__ import annotations

from pathlib import Path

from rose.clock import Anchor
from rose.errors import UserError
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.agent.succession import kept_anchor, last_lease, predecessor
from rose.runtime.coserving.leases.lease_file import LeaseFile


def end_without_agent(writer: LedgerWriter, page: Path, device_id: str) -> None:
    """End the lease that the device's last agent left open, if it did; `page` is where the device's page lies, or lay.

    Raises LedgerError, and UserError if the device is there still for the ledger: nobody accounts for its time.
    """
    root, run_id = writer.root, writer.run_id
    anchor = kept_anchor(page, run_id)
    # What the ledger says where both know the lease: when it expired by itself, which may be long ago.
    left = max(last_lease(root, run_id, device_id), LeaseFile(page, run_id).read(), key=lambda lease: lease.number)
    for event in left.completed(anchor):
        writer.record(event)
    if predecessor(root, run_id, device_id, anchor or Anchor.take()) is not None:
        raise UserError("its agents had ended before, and nobody accounts for its time since")
