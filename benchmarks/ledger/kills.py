"""A writer killed with -9 at any moment, again and again: nothing it acknowledged may be lost, nothing come twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from rose.accept.report import Report
from rose.ledger import catalog
from rose.ledger.verify import verify

#: Records durable and queued events for ever, and prints the event id of each that was acknowledged as durable.
_WRITER = """
import sys
from rose.events import Lease, Power
from rose.ledger.writer import LedgerWriter
writer = LedgerWriter.open(sys.argv[1], "w", "r", "simulated", flush_interval_s=0.005)
life, n = sys.argv[2], 0
while True:
    for _ in range(50):
        writer.record(Power(t0_ns=n, t1_ns=n + 1, power_mw=1, source="made up"))
    name = f"{life}-{n}"
    writer.record(Lease(action="renewed", lease_id=name, kv_budget_bytes=n, compute_share=1.0, expires_at_us=1))
    print(name, flush=True)
    n += 1
"""


def measure(report: Report, folder: Path) -> None:
    """Kill a real writer process at random moments of its life, its start among them."""
    trials = 5 if report.quick else 200
    root, luck = folder / "ledger", random.Random(3)
    acknowledged: list[str] = []
    for life in range(trials):
        command = [sys.executable, "-c", _WRITER, str(root), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            early = luck.random() < 0.1
            if not early:
                acknowledged.append(process.stdout.readline().strip())
            time.sleep(luck.uniform(0, 0.5 if early else 0.15))
            process.send_signal(signal.SIGKILL)
            # What is still in the pipe was acknowledged too; a line cut short was not.
            rest = process.stdout.read().splitlines(keepends=True)
            acknowledged += [line.strip() for line in rest if line.endswith("\n")]
    with catalog.connect(root) as connection:
        seqs = [
            seq for (seq,) in connection.execute("SELECT seq FROM event WHERE writer = 'w' ORDER BY seq").fetchall()
        ]
        names = [
            name for (name,) in connection.execute("SELECT lease_id FROM lease_event WHERE writer = 'w'").fetchall()
        ]
    lost = len(set(acknowledged) - set(names))
    report.claim(f"acknowledged events lost in {trials} kill -9", lost, "events", 0, "lower")
    report.claim("  events that came twice", len(names) - len(set(names)), "events", 0, "lower")
    report.claim("  gaps in seq", len(seqs) and seqs[-1] + 1 - len(seqs), "events", 0, "lower")
    report.claim("  problems that verify finds", len(verify(root).problems), "problems", 0, "lower")
    report.detail["kills"] = {"trials": trials, "acknowledged": len(acknowledged), "events": len(seqs)}
