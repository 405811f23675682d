"""The registry: the names of all writers that ever wrote, so that one that is gone is missed.

`writers.jsonl` has a line for each writer, in the order in which they came, with the SHA-256 of the line before it. A
ledger that was made before there was a registry gets one with its next writer.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rose.ledger import layout
from rose.ledger.layout import LedgerError

FILE = "writers.jsonl"


def note(root: Path, writer: str) -> None:
    """Make sure that the registry names `writer`; a damaged one is left to `verify`. Raises OSError."""
    try:
        if writer not in (known(root) or ()):
            # No writer's name begins with a dot.
            with layout.locked(root / "locks" / ".writers.lock"):
                _append(root, writer)
    except LedgerError:
        # A writer must not stop for it.
        return


def _append(root: Path, writer: str) -> None:
    before = known(root)
    if before is None:
        lines, new = [], sorted({*layout.writers(root), writer})
    else:
        lines, new = (root / FILE).read_bytes().splitlines(), [writer]
    for name in new:
        if name not in (before or ()):
            entry = {"writer": name, "previous_sha256": _sha256(lines[-1]) if lines else ""}
            lines.append(json.dumps(entry).encode())
    layout.write_file(root / FILE, b"".join(line + b"\n" for line in lines))


def known(root: Path) -> tuple[str, ...] | None:
    """The writers that the registry names; None if there is no registry. Raises LedgerError if it is damaged."""
    try:
        lines = (root / FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return None
    names, sha256 = [], ""
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            name, previous_sha256 = str(entry["writer"]), entry["previous_sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{FILE}: line {number} is damaged; put the file back from a copy") from error
        if previous_sha256 != sha256:
            raise LedgerError(f"{FILE}: line {number} does not follow the one before it: a writer was taken out")
        names.append(name)
        sha256 = _sha256(line)
    return tuple(names)


def known_or_none(root: Path) -> tuple[str, ...] | None:
    """The same, None also for a damaged one."""
    try:
        return known(root)
    except LedgerError:
        return None


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
