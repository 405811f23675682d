"""What an agent must remember of its leases when it dies: a small file beside the page, replaced as a whole.

A lease is in it before the ledger hears of it, and leaves it after the ledger heard of its end, so whoever finds an
open lease there completes its story. Each grant and each end has an event id of its own: told twice, it counts once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.clock import Anchor
from rose.events import Lease

_LEFT_OPEN = "its agent ended while it was in force"


@dataclass(frozen=True, slots=True)
class Remembered:
    """The number of the last lease, and the event that granted it if it is not known to have ended.

    `expires_at_us`: of one that the ledger knows and nobody could renew, when it ended by itself.
    """

    number: int = 0
    granted: Lease | None = None
    expires_at_us: int | None = None

    def completed(self, anchor: Anchor | None = None) -> list[Lease]:
        """What the ledger is told of a lease that was left open: its grant, which may not have reached it, and its end
        now, or when it expired. Empty if none was. `anchor`: the device's; None: the wall clock says what time it is.
        """
        if self.granted is None:
            return []
        now_us = max((anchor or Anchor.take()).now_us(), self.granted.at_us)
        end = dataclasses.replace(
            self.granted,
            at_us=now_us if self.expires_at_us is None else min(now_us, self.expires_at_us),
            event_id=f"{self.granted.lease_id}/end",
            action="expired",
            reason=_LEFT_OPEN,
        )
        return [self.granted, end] if self.expires_at_us is None else [end]


class LeaseFile:
    """`<page>.lease.json`. What is not of this run is of no ledger that can be written any more, and is forgotten."""

    def __init__(self, page: Path, run_id: str) -> None:
        self._path = page.with_name(f"{page.name}.lease.json")
        self._run_id = run_id

    def read(self) -> Remembered:
        try:
            stored = json.loads(self._path.read_text())
            if stored["run_id"] != self._run_id:
                return Remembered()
            granted = stored["granted"]
            return Remembered(int(stored["number"]), None if granted is None else Lease(**granted))
        except (OSError, ValueError, KeyError, TypeError):
            return Remembered()

    def write(self, remembered: Remembered) -> None:
        granted: Mapping[str, Any] | None = None
        if remembered.granted is not None:
            granted = dataclasses.asdict(remembered.granted)
        partial = self._path.with_name(f".{self._path.name}.partial")
        partial.write_text(
            json.dumps({"run_id": self._run_id, "number": remembered.number, "granted": granted}, indent=1)
        )
        partial.replace(self._path)
