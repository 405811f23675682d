"""Retention: which old parts leave a ledger, and which stay although they are old enough, each with the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.clock import iso, utc_us
from rose.ledger import layout
from rose.ledger.approvals import proposals
from rose.ledger.approvals.state import DAY_US, Hold
from rose.ledger.approvals.values import CONTROLS_WRITER
from rose.ledger.growth import compaction, contents, rollup
from rose.ledger.layout import LedgerError, Part
from rose.ledger.verify import ARCHIVE_WRITER, CLOSING_WRITER, COMPACTION_WRITER, ROLL_UP_WRITER

#: Their events prove the manifests of all writers, roll-ups, closes and approvals, so they never leave the ledger.
_KEPT_WRITERS = (ARCHIVE_WRITER, CLOSING_WRITER, COMPACTION_WRITER, ROLL_UP_WRITER, CONTROLS_WRITER)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A part that `archive` would have leave the ledger, or that stays all the same: then `kept` says why."""

    part: Part
    manifest_sha256: str
    events: int
    bytes: int
    shares: tuple[contents.Share, ...]
    kept: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; times are UTC microseconds."""
        shares = self.shares
        return {
            "file": f"{self.part.stem}.parquet",
            "manifest_sha256": self.manifest_sha256,
            "events": self.events,
            "bytes": self.bytes,
            "runs": sorted({share.run_id or "" for share in shares}),
            "first_us": min((share.first_us for share in shares), default=None),
            "last_us": max((share.last_us for share in shares), default=None),
            "kept": self.kept,
        }


class NothingLeavesError(LedgerError):
    """No part is old enough, so there is nothing to propose."""


def before_us(older_than_days: float) -> int:
    """The time before which events are older than that, UTC microseconds."""
    return utc_us() - int(older_than_days * DAY_US)


def plan(
    root: Path | str, older_than_days: float, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Leaving]:
    """What `archive` with `delete` would have leave the ledger now, and what would stay though it is old enough.

    Raises LedgerError, also if a part is damaged.
    """
    root = layout.check(root)
    return _plan(root, before_us(older_than_days), progress)


def check_age(root: Path | str, keep_days: float) -> None:
    """Raises LedgerError if the rules want events kept longer than that."""
    least = proposals.load(root).rules.retention_min_days
    if keep_days < least:
        raise LedgerError(
            f"the rules of this ledger keep events for {least:g} days at least, and {keep_days:g} is less"
        )


def _plan(root: Path, before_us: int, progress: Callable[[int, int], None]) -> list[Leaving]:
    with layout.moving_parts(root):
        old = due(root, before_us)
    covered, holds = rollup.covered(root), proposals.load(root).in_force
    parts = []
    for number, part in enumerate(old):
        progress(number, len(old))
        content, manifest, manifest_content = compaction.read_compacted(root, part)
        shares = contents.shares(content)
        kept = reason_to_keep(part, manifest, covered) or held(holds, shares)
        events = manifest["last_seq"] - manifest["first_seq"] + 1
        sha256 = hashlib.sha256(manifest_content).hexdigest()
        parts.append(Leaving(part, sha256, events, len(content), shares, kept))
    progress(len(old), len(old))
    return parts


def proposed(root: Path, before_us: int) -> Mapping[str, Any]:
    """What a proposal covers: nothing else can leave under it."""
    leaving = [one.to_json() for one in _plan(root, before_us, lambda done, total: None) if one.kept is None]
    if not leaving:
        raise NothingLeavesError("no part is old enough")
    names = ("file", "manifest_sha256", "events", "bytes")
    return {
        "older_than": iso(before_us),
        "events": sum(one["events"] for one in leaving),
        "bytes": sum(one["bytes"] for one in leaving),
        "runs": sorted({run for one in leaving for run in one["runs"]}),
        "parts": [{name: one[name] for name in names} for one in leaving],
    }


def reason_to_keep(part: Part, manifest: Mapping[str, Any], covered: Mapping[str, int]) -> str | None:
    """Why a part never leaves, or not yet; `covered` is the first seq of each writer that the roll-up lacks."""
    if part.writer in _KEPT_WRITERS:
        return "its events prove what was merged, archived, closed and approved"
    if manifest["last_seq"] >= covered.get(part.writer, 0):
        return "its events are not in the roll-up; run `rose ledger roll-up` first"
    return None


def held(holds: Sequence[Hold], shares: Sequence[contents.Share]) -> str | None:
    """Which of the holds keeps a part with these events; None if none does."""
    for hold in holds:
        if any(hold.covers(share.run_id, share.first_us, share.last_us) for share in shares):
            return f"it is under hold {hold.short_id} ({hold.what})"
    return None


def due(root: Path, before_us: int) -> list[Part]:
    """Compacted parts that have events, all of them before `before_us`."""
    parts = []
    for writer in layout.writers(root):
        for part in layout.parts(root, writer):
            if part.state == "compacted":
                newest_us = compaction.newest_at_us(root, part)
                if newest_us is not None and newest_us < before_us:
                    parts.append(part)
    return parts
