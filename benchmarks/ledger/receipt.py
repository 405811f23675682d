"""Receipt of a ledger of ten million events, by the command itself.

The ledger is the one that `scale` made, or one like it. The claim is the median of several rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.ledger import scale, traffic
from rose.accept.report import Report
from rose.ledger.evidence import receipt as receipts
from rose.ledger.writer import LedgerWriter

ROUNDS, ROUNDS_QUICK = 7, 1
EVENTS_QUICK = 20_000
#: New ones before each receipt, as of a writer that flushes every two seconds for five minutes.
SEGMENTS_BETWEEN = 150
TARGET_S = 1


def measure(report: Report, folder: Path) -> None:
    """Receipts of a ledger, each after new segments of one writer."""
    root = folder.parent / "scale" / "ledger"
    if not root.exists():
        root = folder / "ledger"
        scale.fill(root, EVENTS_QUICK if report.quick else scale.EVENTS)
    rng = np.random.default_rng(5)
    taken_s = []
    with LedgerWriter.open(root, "host-0", "r", "simulated") as writer:
        for number in range(ROUNDS_QUICK if report.quick else ROUNDS):
            for first in range(SEGMENTS_BETWEEN):
                writer.append(traffic.batch((number * SEGMENTS_BETWEEN + first) * 10, 10, rng))
            words = ["receipt", "--ledger", str(root), "--out", str(folder / f"receipt-{number}.json")]
            before = time.perf_counter()
            command = [sys.executable, "-m", "rose.cli", "ledger", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            taken_s.append(time.perf_counter() - before)
            assert done.returncode == 0, done.stderr
    report.claim("rose ledger receipt", statistics.median(taken_s), "s", TARGET_S, "lower")
    report.detail["receipt"] = {
        "events": receipts.take(root).events,
        "segments_between": SEGMENTS_BETWEEN,
        "rounds_s": [round(seconds, 3) for seconds in taken_s],
    }
