"""Receipt and witness of a ledger of ten million events: the commands themselves, on its folder and at its gateway.

The ledger is the one that `scale` made, or one like it. A claim is the median of several rounds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ledger import scale, traffic
from rose.accept.report import Report
from rose.ledger.evidence import receipt as receipts
from rose.ledger.hosts import gateway
from rose.ledger.writer import LedgerWriter

ROUNDS, ROUNDS_QUICK = 7, 1
EVENTS_QUICK = 20_000
#: What a witness that comes every five minutes has to follow, of a writer that flushes every two seconds.
SEGMENTS_BETWEEN = 150
TARGET_S = 1


@dataclass(slots=True)
class _Taken:
    """Seconds that a command took in each round, its start included, and those of the processor."""

    wall_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "median_s": round(statistics.median(self.wall_s), 3),
            "median_processor_s": round(statistics.median(self.processor_s), 3),
            "rounds_s": [round(seconds, 3) for seconds in self.wall_s],
        }


def measure(report: Report, folder: Path) -> None:
    """Receipts, a witness's first checkpoint, and its next ones after new segments of one writer."""
    rounds = ROUNDS_QUICK if report.quick else ROUNDS
    root = folder.parent / "scale" / "ledger"
    if not root.exists():
        root = folder / "ledger"
        scale.fill(root, EVENTS_QUICK if report.quick else scale.EVENTS)
    rng = np.random.default_rng(5)
    taken: dict[str, _Taken] = {}
    with gateway.serve(root, "127.0.0.1", 0) as url, LedgerWriter.open(root, "host-0", "r", "simulated") as writer:
        sides = {"of a folder": ["--ledger", str(root)], "at a gateway": ["--server", url]}
        for number in range(rounds):
            out = folder / f"receipt-{number}.json"
            _run(taken, "receipt", "receipt", "--ledger", str(root), "--out", str(out))
            states = {side: folder / side.replace(" ", "-") for side in sides}
            for side, at in sides.items():
                shutil.rmtree(states[side], ignore_errors=True)
                _run(taken, f"witness {side}, first", "witness", *at, "--state", str(states[side]), "--once")
            for first in range(SEGMENTS_BETWEEN):
                writer.append(traffic.batch((number * SEGMENTS_BETWEEN + first) * 10, 10, rng))
            for side, at in sides.items():
                _run(taken, f"witness {side}, next", "witness", *at, "--state", str(states[side]), "--once")
    for name, one in taken.items():
        report.claim(f"rose ledger {name}", statistics.median(one.wall_s), "s", TARGET_S, "lower")
    report.detail["witness"] = {
        "events": receipts.take(root).events,
        "segments_between": SEGMENTS_BETWEEN,
        **{name: one.to_json() for name, one in taken.items()},
    }


def _run(taken: dict[str, _Taken], name: str, *words: str) -> None:
    """Run a command of `rose ledger`, and note what it took under `name`."""
    before, worked = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "rose.cli", "ledger", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, now = time.perf_counter() - before, os.times()
    assert done.returncode == 0, done.stderr
    one = taken.setdefault(name, _Taken())
    one.wall_s.append(seconds)
    one.processor_s.append(now.children_user - worked.children_user + now.children_system - worked.children_system)
