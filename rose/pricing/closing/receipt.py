"""The receipt of a close: the ledger's own receipt, taken just after it, so that it fixes the close with all before."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rose.ledger import layout
from rose.ledger.evidence import receipt as receipts
from rose.ledger.evidence.witness import outside_a_ledger
from rose.ledger.layout import LedgerError


def place(path: Path) -> Path:
    """Where a receipt may be written. Raises LedgerError for a place in a ledger, and for a file that is there."""
    path = path.expanduser().resolve()
    outside_a_ledger(path)
    if path.exists():
        raise LedgerError(f"{path} exists; name a new file: a receipt that was kept may still be needed")
    if not path.parent.is_dir():
        raise LedgerError(f"{path}: there is no folder {path.parent}; make it first")
    return path


def write(root: Path, path: Path) -> str:
    """Write a receipt of the ledger as it is now; returns the SHA-256 of the file. Raises LedgerError."""
    path, content = place(path), receipts.take(root).content()
    try:
        layout.write_file(path, content)
    except OSError as error:
        raise LedgerError(f"cannot write {path}: {error.strerror}; {layout.way_out(error)}") from error
    return hashlib.sha256(content).hexdigest()
