"""Two writers, four readers and compaction at once, in processes of their own: no error, no wrong total."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rose.accept.report import Report
from rose.ledger.verify import verify

#: Records at the benchmark's steady rate, then prints its events and the p50 and p99 of `record` in microseconds.
_WRITER = """
import json, sys
import numpy as np
from benchmarks.ledger.record import paced
from rose.ledger.writer import LedgerWriter
with LedgerWriter.open(sys.argv[1], sys.argv[2], "r", "simulated") as writer:
    taken = paced(writer, float(sys.argv[3]))
print(json.dumps({"events": len(taken), "p50": np.percentile(taken, 50) / 1e3, "p99": np.percentile(taken, 99) / 1e3}))
"""

#: Asks for totals again and again: they may only grow, and each writer's events must be without a gap.
_READER = """
import json, os, sys, time
from rose.ledger import catalog
os.nice(5)
until, reads, errors, last = time.monotonic() + float(sys.argv[2]), 0, [], 0
while time.monotonic() < until:
    try:
        with catalog.connect(sys.argv[1]) as connection:
            rows = connection.execute(
                "SELECT writer, count(*), max(seq) + 1, sum(output_tokens) FROM turn GROUP BY writer"
            ).fetchall()
        total = sum(row[1] for row in rows)
        if total < last or any(row[1] != row[2] for row in rows):
            errors.append(f"wrong total after {last}: {rows}")
        last = total
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
    reads += 1
    time.sleep(1)
print(json.dumps({"reads": reads, "errors": errors}))
"""

#: What the background job does, as often as the soak wants it.
_COMPACTION = """
import json, os, sys, time
from rose.ledger.growth.compaction import compact
os.nice(10)
until, errors, runs = time.monotonic() + float(sys.argv[2]), [], 0
while time.monotonic() < until:
    time.sleep(float(sys.argv[3]))
    try:
        compact(sys.argv[1], grace_s=5)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
    runs += 1
print(json.dumps({"runs": runs, "errors": errors}))
"""


def measure(report: Report, folder: Path) -> None:
    """The writers alone first, then all together; the same processes, the same rate."""
    seconds, alone_s, each_s = (10, 5, 3) if report.quick else (300, 60, 10)
    alone = _results([_start(_WRITER, folder / "alone", f"w{n}", alone_s) for n in range(2)])
    root = folder / "ledger"
    writers = [_start(_WRITER, root, f"w{n}", seconds) for n in range(2)]
    while not (root / "ledger.duckdb").exists():
        time.sleep(0.05)
    readers = [_start(_READER, root, seconds) for _ in range(4)]
    compaction = [_start(_COMPACTION, root, seconds, each_s)]
    written, read, compacted = _results(writers), _results(readers), _results(compaction)
    errors = [error for part in (*read, *compacted) for error in part["errors"]]
    sound = verify(root)
    events = sum(writer.events for writer in sound.writers if writer.writer.startswith("w"))
    ratio = max(part["p99"] for part in written) / max(part["p99"] for part in alone)
    report.claim(f"soak of {seconds} s: errors and wrong totals", len(errors), "errors", 0, "lower")
    missing = sum(part["events"] for part in written) - events
    report.claim("  events missing at its end", missing, "events", 0, "lower")
    report.claim("  problems that verify finds", len(sound.problems), "problems", 0, "lower")
    if not report.quick:
        report.claim("  record() p99 against the writers alone", ratio, "x", 2, "lower")
    report.detail["soak"] = {
        "seconds": seconds,
        "alone_us": alone,
        "together_us": written,
        "reads": [part["reads"] for part in read],
        "compactions": compacted[0]["runs"],
        "errors": errors[:10],
    }


def _start(code: str, root: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(root), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _results(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    found = []
    for process in processes:
        out, _ = process.communicate()
        assert process.returncode == 0, f"a process of the soak failed with {process.returncode}"
        # DuckDB may have drawn a progress bar before.
        found.append(json.loads(out.splitlines()[-1]))
    return found
