"""What an agent goes on from that takes a device over from one before it: its clock, its accounts, its leases.

How far a device's time was accounted for is what the ledger has, and nothing else: what an agent that was killed had
not written yet never was. What the engines did since then lies in the page's rings.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sql
from rose.clock import Anchor, monotonic_ns, utc_us
from rose.events import Lease
from rose.ledger import catalog
from rose.ledger.layout import LedgerError
from rose.runtime.coserving.leases.lease_file import Remembered
from rose.runtime.coserving.leases.leasing import LeaseChange
from rose.runtime.engines.adoption import boot_id
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import Manifest

#: A day: of a ledger of months only this is read, unless the host was away for longer.
_LATELY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Predecessor:
    """Up to when the agents before this one accounted for the device, monotonic, and the leases that ended since."""

    until_ns: int
    leases: tuple[LeaseChange, ...] = ()


def recorded_run(staging: Path) -> str:
    """The run of the weights that are on record beside an engine; "" where none are."""
    for path in staging.glob("held-*.json"):
        with suppress(OSError, TransferError):
            return Manifest.from_bytes(path.read_bytes()).run_id
    return ""


def same_anchor(page: Path, run_id: str, anchor: Anchor) -> Anchor:
    """The anchor that the agents of this device have gone by since the host's boot, whatever the wall clock did
    meanwhile; `anchor` for the first one. Raises OSError."""
    path = page.with_name(f"{page.name}.anchor.json")
    own = {"boot_id": boot_id(), "run_id": run_id}
    try:
        kept = json.loads(path.read_text())
        if {name: kept[name] for name in own} == own:
            return Anchor(int(kept["utc_minus_monotonic_ns"]))
    except (OSError, ValueError, LookupError, TypeError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(own | {"utc_minus_monotonic_ns": anchor.utc_minus_monotonic_ns}))
    partial.replace(path)
    return anchor


def predecessor(ledger: Path, run_id: str, device_id: str, anchor: Anchor) -> Predecessor | None:
    """What the ledger knows of agents before this one; None if the device was never in this fleet, or has left it.

    Raises LedgerError if the ledger cannot be read: time would be counted twice.
    """
    of_device = {"run_id": run_id, "device_id": device_id}
    try:
        with catalog.connect(ledger) as connection:

            def accounted(since_us: int) -> tuple[int | None, str | None]:
                text = sql.read("device/accounted.sql")
                row = connection.execute(text, of_device | {"since_us": since_us}).fetchone()
                return (None, None) if row is None else row

            until_ns, last_action = accounted(utc_us() - _LATELY_US)
            if until_ns is None and last_action == "joined":
                until_ns, _ = accounted(0)  # The host was away for long.
            if until_ns is None or last_action != "joined":
                return None
            text = sql.read("device/ended_leases.sql")
            rows = connection.execute(text, of_device | {"until_ns": until_ns}).fetchall()
    except LedgerError:
        raise
    except Exception as error:
        raise LedgerError(f"the ledger at {ledger} does not tell how far device {device_id} is accounted for: {error}")
    offset_ns = anchor.utc_minus_monotonic_ns
    changes: list[LeaseChange] = []
    for lease_id, granted_ns, closed_ns in rows:
        changes.append(LeaseChange((until_ns if granted_ns is None else granted_ns) - offset_ns, lease_id, None))
        changes.append(LeaseChange(closed_ns - offset_ns, None, None))
    # Never after now: a clock that was set back between two boots would have the device wait.
    return Predecessor(min(until_ns - offset_ns, monotonic_ns()), tuple(changes))


def last_lease(ledger: Path, run_id: str, device_id: str) -> Remembered:
    """What the ledger knows of the device's last lease: a host that lost its memory knows nothing else of it.

    Raises LedgerError if the ledger cannot be read: two leases would have one name.
    """
    of_device = {"run_id": run_id, "device_id": device_id}
    try:
        with catalog.connect(ledger) as connection:
            for since_us in (utc_us() - _LATELY_US, 0):
                connection.execute(sql.read("device/last_lease.sql"), of_device | {"since_us": since_us})
                names = [column[0] for column in connection.description or []]
                if (row := connection.fetchone()) is not None:
                    break
            else:
                return Remembered()
    except LedgerError:
        raise
    except Exception as error:
        raise LedgerError(f"the ledger at {ledger} does not tell the last lease of device {device_id}: {error}")
    known = dict(zip(names, row, strict=True))
    number, ended, expires_at_us = (known.pop(name) for name in ("number", "ended", "expires_at_us"))
    if ended:
        return Remembered(number)
    granted = Lease(action="granted", device_id=device_id, expires_at_us=expires_at_us, **known)
    return Remembered(number, granted, expires_at_us)
