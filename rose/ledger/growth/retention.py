"""Retention: which old parts leave a ledger, and which stay although they are old enough, each with the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rose.clock import iso, utc_us
from rose.ledger import layout
from rose.ledger.approvals import proposals
from rose.ledger.approvals.state import DAY_US, Hold
from rose.ledger.growth import compaction, contents, rollup
from rose.ledger.growth.left_out import KEPT_WRITERS
from rose.ledger.hosts import spool
from rose.ledger.layout import LedgerError, Part

#: What a proposal says of each of its files.
_PROPOSED = ("file", "manifest_sha256", "events", "bytes")


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
    """No part leaves, so there is nothing to propose. `kept` has a reason for each that is old enough."""

    def __init__(self, kept: Sequence[str]) -> None:
        super().__init__("no part is old enough" if not kept else f"no part leaves: {kept[0]}")
        self.kept = kept


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
        leaving, last_seq = _leaving(root, part)
        kept = held(holds, leaving.shares) or reason_to_keep(root, part, last_seq, covered)
        parts.append(replace(leaving, kept=kept))
    progress(len(old), len(old))
    return parts


def _leaving(root: Path, part: Part) -> tuple[Leaving, int]:
    """What a part is, whether it stays or not, and its last seq."""
    content, manifest, manifest_content = compaction.read_compacted(root, part)
    sha256 = hashlib.sha256(manifest_content).hexdigest()
    events = manifest["last_seq"] - manifest["first_seq"] + 1
    return Leaving(part, sha256, events, len(content), contents.shares(content)), manifest["last_seq"]


def proposed(root: Path, before_us: int) -> Mapping[str, Any]:
    """What a proposal covers: nothing else can leave under it."""
    old = _plan(root, before_us, lambda done, total: None)
    if not (leaving := [one for one in old if one.kept is None]):
        raise NothingLeavesError([one.kept for one in old if one.kept is not None])
    return {"older_than": iso(before_us), **_described(leaving)}


def proposal_fault(root: Path, content: Mapping[str, Any]) -> str | None:
    """In what the content of a proposal differs from the files that it names, by their manifests; None if in nothing.

    Reads these files. Raises LedgerError if one is damaged.
    """
    try:
        named = {str(one["file"]): one for one in content["parts"]}
    except (KeyError, TypeError):
        return "it names no files"
    with layout.moving_parts(root):
        parts = {f"{part.stem}.parquet": part for writer in layout.writers(root) for part in layout.parts(root, writer)}
        if gone := [file for file in named if file not in parts or parts[file].state != "compacted"]:
            return f"{gone[0]} is not in the ledger, or no longer"
        described = _described([_leaving(root, parts[file])[0] for file in named])
    for part, one in zip(described["parts"], content["parts"], strict=True):
        if part != one:
            wrong = next((name for name in part if part[name] != one.get(name)), min(set(one) - set(part), default=""))
            return f"{part['file']}: {wrong} is {part.get(wrong)}, and it says {one.get(wrong)}"
    wrong = next((name for name, value in described.items() if content.get(name) != value), None)
    return None if wrong is None else f"{wrong} is {described[wrong]}, and it says {content.get(wrong)}"


def _described(leaving: Sequence[Leaving]) -> dict[str, Any]:
    """What a proposal says of the parts that it covers."""
    parts = [one.to_json() for one in leaving]
    return {
        "events": sum(one["events"] for one in parts),
        "bytes": sum(one["bytes"] for one in parts),
        "runs": sorted({run for one in parts for run in one["runs"]}),
        "parts": [{name: one[name] for name in _PROPOSED} for one in parts],
    }


def reason_to_keep(root: Path, part: Part, last_seq: int, covered: Mapping[str, int]) -> str | None:
    """Why a part never leaves, or not yet; `covered` is the first seq of each writer that the roll-up lacks.

    Raises LedgerError if what a forwarder left is damaged.
    """
    if part.writer in KEPT_WRITERS:
        return "its events prove what was merged, archived, closed and approved"
    unsent = spool.first_unsent_epoch(root, part.writer)
    if unsent is not None and part.last >= unsent:
        return "its events are not all at the gateway; `rose ledger forward` sends them"
    if last_seq >= covered.get(part.writer, 0):
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
