"""When turns come: as the clients of the recorded run sent them, or evenly spaced."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rose.accept.report import ROOT
from rose.ledger import catalog

SAMPLE = ROOT / "sample_traces" / "ledger"
#: A turn was recorded when it was over, after it had waited and run.
_ARRIVED = """
SELECT epoch_us(min(event_time)) - sum(queue_ns + duration_ns) // 1000 AS arrived_us
FROM turn
GROUP BY run_id, trajectory_id, turn
ORDER BY arrived_us
"""

#: Seconds after the begin at which each turn is sent, for a rate of turns a second and so many seconds of it.
Arrivals = Callable[[float, float], list[float]]


def recorded(rate: float, seconds: float) -> list[float]:
    """The first turns of the sample ledger, at its own pace but for a stretch that makes their mean rate `rate`.

    Of a group's turns many come at once: its engines answer them at the end of the same step. The ledger has 46,000
    turns; ValueError if more are wanted.
    """
    count = int(rate * seconds)
    with tempfile.TemporaryDirectory(prefix="controller-benchmark-") as folder:
        # Who reads a ledger leaves a catalog in it.
        copy = shutil.copytree(SAMPLE, Path(folder) / "ledger")
        with catalog.connect(copy) as ledger:
            arrived = [us / 1e6 for (us,) in ledger.execute(_ARRIVED).fetchmany(count + 1)]
    if len(arrived) <= count:
        raise ValueError(f"--rate {rate:g} and --seconds {seconds:g} are {count} turns; {SAMPLE} has {len(arrived)}")
    stretch = count / rate / (arrived[count] - arrived[0])
    return [(at - arrived[0]) * stretch for at in arrived[:count]]


def even(rate: float, seconds: float) -> list[float]:
    """One after the other: clients that have nothing to do with one another."""
    return [number / rate for number in range(int(rate * seconds))]
