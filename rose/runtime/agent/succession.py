"""The clock, accounts and leases that an agent takes over. Only the ledger tells which time is recorded."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

import sql
from rose import private_files
from rose.clock import Anchor, monotonic_ns, utc_us
from rose.events import Lease
from rose.ledger.files import catalog
from rose.ledger.files.layout import LedgerError
from rose.runtime.coserving.leases.leasing import LastLease, LeaseChange
from rose.runtime.engines.adoption import boot_id
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Manifest

_LATELY_US = 86_400_000_000  # a day: only this part of a long ledger is read, unless the host was away for longer


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The records of a device's former agents. They recorded the device's time until `until_ns` (monotonic). `leases`
    has the grants and ends of those leases that ended after `until_ns`. `train_run_id` is the last training run."""

    until_ns: int
    leases: tuple[LeaseChange, ...] = ()
    train_run_id: str = ""


def recorded_run(staging: Path) -> str:
    for path in staging.glob("held-*.json"):
        with suppress(OSError, TransferError):
            return Manifest.from_bytes(path.read_bytes()).run_id
    return ""


def kept_anchor(page: Path, run_id: str) -> Anchor | None:
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(_anchor_file(page).read_text())
        if kept["boot_id"] == boot_id() and kept["run_id"] == run_id:
            return Anchor(int(kept["utc_minus_monotonic_ns"]))
    return None


def same_anchor(page: Path, ledger: Path, run_id: str, device_id: str, anchor: Anchor) -> Anchor:
    """Return the anchor (clock) that all agents of a device use until the host's next boot. The first agent after a
    boot writes `anchor` to a file. If the device's newest event in the ledger is later than this clock's present time,
    the agent first moves the clock forward to that event. Raises OSError or LedgerError."""
    if (kept := kept_anchor(page, run_id)) is not None:
        return kept
    with _reading(ledger, f"the newest event of device {device_id}") as connection:
        known = _known(connection, run_id, device_id)
    if known is not None:
        _, newest_ns, *_ = known
        anchor = Anchor(max(anchor.utc_minus_monotonic_ns, newest_ns - monotonic_ns()))
    path = _anchor_file(page)
    private_files.make(path.parent)
    own = {"boot_id": boot_id(), "run_id": run_id, "utc_minus_monotonic_ns": anchor.utc_minus_monotonic_ns}
    private_files.write(path, json.dumps(own))
    return anchor


def predecessor(ledger: Path, run_id: str, device_id: str, anchor: Anchor) -> Predecessor | None:
    with _reading(ledger, f"the accounted time of device {device_id}") as connection:
        until_ns, _, joined, train_run_id = _known(connection, run_id, device_id) or (0, 0, False, "")
        if not joined:
            return None
        since = {"run_id": run_id, "device_id": device_id, "until_ns": until_ns}
        rows = connection.execute(sql.read("device/ended_leases.sql"), since).fetchall()
    offset_ns, now_ns = anchor.utc_minus_monotonic_ns, monotonic_ns()
    changes: list[LeaseChange] = []
    for lease_id, granted_ns, closed_ns in rows:
        began_ns = until_ns if granted_ns is None else granted_ns
        changes.append(LeaseChange(min(began_ns - offset_ns, now_ns), lease_id, None))
        changes.append(LeaseChange(min(closed_ns - offset_ns, now_ns), None, None))
    return Predecessor(min(until_ns - offset_ns, now_ns), tuple(changes), train_run_id)


def last_lease(ledger: Path, run_id: str, device_id: str) -> LastLease:
    of_device = {"run_id": run_id, "device_id": device_id}
    with _reading(ledger, f"the last lease of device {device_id}") as connection:
        for since_us in (utc_us() - _LATELY_US, 0):
            connection.execute(sql.read("device/last_lease.sql"), of_device | {"since_us": since_us})
            names = [column[0] for column in connection.description or []]
            if (row := connection.fetchone()) is not None:
                break
        else:
            return LastLease()
    known = dict(zip(names, row, strict=True))
    number, ended, expires_at_us = (known.pop(name) for name in ("number", "ended", "expires_at_us"))
    if ended:
        return LastLease(number)
    granted = Lease(action="granted", device_id=device_id, expires_at_us=expires_at_us, **known)
    return LastLease(number, granted, expires_at_us)


def _anchor_file(page: Path) -> Path:
    return page.with_name(f"{page.name}.anchor.json")


@contextmanager
def _reading(ledger: Path, wanted: str) -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        with catalog.connect(ledger) as connection:
            yield connection
    except LedgerError:
        raise
    except Exception as error:
        raise LedgerError(f"cannot read {wanted} from the ledger at {ledger}: {error}") from error


def _known(connection: duckdb.DuckDBPyConnection, run_id: str, device_id: str) -> tuple[int, int, bool, str] | None:
    """Return what the ledger knows of a device: (end of its recorded time, time of its newest event, whether it is in
    the fleet, its last training run). Times are UTC ns. Return None if the device never joined."""
    of_device = {"run_id": run_id, "device_id": device_id}
    changed_ns, action = connection.execute(sql.read("device/last_change.sql"), of_device).fetchone() or (None, None)
    if changed_ns is None:
        return None
    # Everything after the last change; its last day is enough if that has anything.
    changed_us, until_ns, newest_ns, train_run_id = changed_ns // 1000, None, None, None
    for since_us in dict.fromkeys((max(changed_us, utc_us() - _LATELY_US), changed_us)):
        text = sql.read("device/accounted.sql")
        row = connection.execute(text, of_device | {"since_us": since_us}).fetchone()
        until_ns, newest_ns, train_run_id = row or (None, None, None)
        if until_ns is not None:
            break
    return max(changed_ns, until_ns or 0), max(changed_ns, newest_ns or 0), action == "joined", train_run_id or ""
