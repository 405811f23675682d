"""What the disk alone takes for a file that lasts, measured beside what the ledger takes for an event that does."""

from __future__ import annotations

import os
from pathlib import Path

#: Of a segment with one event.
SEGMENT_BYTES = 4096


def write_lasting(path: Path) -> None:
    """Write a file of SEGMENT_BYTES so that it outlasts a power cut: one fsync of its content, one of its name.

    This is the least that any ledger of immutable files waits for.
    """
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(bytes(SEGMENT_BYTES))
    _sync(temporary)
    temporary.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
