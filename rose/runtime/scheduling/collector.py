"""Python's garbage collector in a process that answers turns."""

from __future__ import annotations

import gc

#: Objects that may be made, and not freed, between two passes over the young ones, and how many of those passes there
#: are between two over the older ones. A turn leaves few cycles, and while it waits for its engine its 200 objects look
#: as if they were some: with Python's 700 a tenth of all that a turn costs is looking through them.
_THRESHOLDS = (20_000, 50, 100)


def spare() -> None:
    """Look through what was loaded so far never again, and through what turns make less often."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
