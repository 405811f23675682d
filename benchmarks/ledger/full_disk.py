"""Writers killed with -9 at any moment while their disk fills up: what they acknowledged is in the views, once.

Each trial has a small file system of its own, in memory, in a mount namespace that needs no rights beyond a user's.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import duckdb

from rose.accept.report import Report
from rose.events import Lease
from rose.ledger import catalog, layout
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter

_DISK_BYTES = 6 * 1024**2
_LEASE = {"action": "renewed", "kv_budget_bytes": 1, "compute_share": 1.0, "expires_at_us": 1}

#: Records durable and queued events for ever, and prints the id of each that was acknowledged as durable. Epochs of a
#: few segments, so that most of the time one is begun, merged or removed.
_WRITER = """
import sys, time
from contextlib import suppress
from rose.events import Lease, Power
from rose.ledger import segments
from rose.ledger.growth.compaction import compact
from rose.ledger.layout import LedgerError
from rose.ledger.writer import LedgerWriter
segments.SEGMENTS_PER_EPOCH = 4
writer = LedgerWriter.open(sys.argv[1], "w", "r", "simulated", flush_interval_s=0.005)
n = 0
while True:
    for _ in range(5):
        writer.record(Power(t0_ns=n, t1_ns=n + 1, power_mw=1, source="other"))
    name = f"{sys.argv[2]}-{n}"
    n += 1
    try:
        writer.record(Lease(lease_id=name, event_id=name, **LEASE))
        print(name, flush=True)
    except LedgerError:
        print("refused", flush=True)
        time.sleep(0.005)
    if n % 20 == 0 and sys.argv[3] == "compact":
        with suppress(LedgerError):
            compact(sys.argv[1], 0)
""".replace("LEASE", repr(_LEASE))


def measure(report: Report, folder: Path) -> None:
    """Fill the disk at a random byte and kill the writer at a random moment; 200 times, or 3 with `quick`."""
    trials = 3 if report.quick else 200
    disk = folder / "disk"
    disk.mkdir()
    try:
        allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        report.detail["full_disk"] = "not measured: mount namespaces are not allowed here"
        return
    command = [sys.executable, "-m", "benchmarks.ledger.full_disk", str(disk), str(trials)]
    inside = f'mount -t tmpfs -o size={_DISK_BYTES} none {disk} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside, "sh", *command], stdout=subprocess.PIPE, text=True, check=True
    )
    totals: dict[str, Any] = json.loads(done.stdout)
    claims = {
        "hidden_then": f"acknowledged events not seen on a full disk, {trials} kill -9",
        "unread_then": "  not read by a connection of ROSE",
        "hidden_later": "  not seen once there is room",
        "twice": "  events that came twice",
        "gaps": "  gaps in seq",
        "problems": "  problems that verify finds",
        "not_opened": "  names that could not be opened again once there was room",
    }
    for name, text in claims.items():
        report.claim(text, totals[name], "events", 0, "lower")
    report.detail["full_disk"] = totals


def main() -> None:
    """Run the trials on the file system at `sys.argv[1]`; prints the sums over all of them as JSON."""
    disk, trials = Path(sys.argv[1]), int(sys.argv[2])
    luck = random.Random(15)
    totals: Counter[str] = Counter()
    for life in range(trials):
        totals.update(trial(disk, life, luck))
        for path in disk.iterdir():
            subprocess.run(["rm", "-rf", path], check=True)
    print(json.dumps({"trials": trials, **totals}))


def trial(disk: Path, life: int, luck: random.Random) -> dict[str, int]:
    """One writer's life and what was left of it: how many events of each fate."""
    root, ballast = disk / "ledger", disk / "ballast"
    # Most of what matters happens where the catalog has just room, or just none.
    free_bytes = luck.choice((luck.randrange(900_000), luck.randrange(600_000), luck.randrange(30_000)))
    merging = luck.random() < 0.3
    early = luck.random() < 0.15
    if early:
        _fill(disk, ballast, free_bytes)
    command = [sys.executable, "-c", _WRITER, str(root), str(life), "compact" if merging else ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip()]
        if not early:
            time.sleep(luck.uniform(0, 0.4))
            _fill(disk, ballast, free_bytes)
        time.sleep(luck.uniform(0, 1.0))
        process.send_signal(signal.SIGKILL)
        # What is still in the pipe was acknowledged too; a line cut short was not.
        acknowledged += [line.strip() for line in process.stdout.read().splitlines(keepends=True) if line[-1] == "\n"]
    refused = "refused" in acknowledged
    names = set(filter(None, acknowledged)) - {"refused"}
    then = _seen(root) if names else Counter()
    with closing(catalog.connect(root)) if names else nullcontext() as reader:
        read = Counter() if reader is None else _count(reader)
    ballast.unlink(missing_ok=True)
    opened = True
    try:
        with LedgerWriter.open(root, "w", "r", "simulated") as writer:
            writer.record(Lease(lease_id="next", **_LEASE))  # type: ignore[arg-type]
    except LedgerError as error:
        print(f"trial {life}: {error}", file=sys.stderr)
        opened = False
    with closing(catalog.connect(root)) as connection:
        later = _count(connection)
        events = Counter(
            row[0] for row in connection.execute("SELECT event_id FROM event WHERE kind = 'lease'").fetchall()
        )
        seqs = connection.execute(
            "SELECT count(*), count(DISTINCT seq), max(seq) + 1 FROM stored_event WHERE writer = 'w'"
        )
        count, distinct, end = seqs.fetchone() or (0, 0, 0)
    problems = verify(root).problems
    for problem in problems:
        print(f"trial {life}: {problem}", file=sys.stderr)
    return {
        "acknowledged": len(names),
        "events": count,
        "trials_with_refusals": refused,
        "trials_with_compaction": merging,
        "hidden_then": len(names - set(then)),
        "unread_then": len(names - set(read)),
        "hidden_later": len(names - set(later)) + len(names - set(events)),
        "twice": sum(number - 1 for number in (*then.values(), *later.values(), *events.values())) + count - distinct,
        "gaps": (end or 0) - distinct,
        "problems": len(problems),
        "not_opened": not opened,
    }


def _fill(disk: Path, ballast: Path, free_bytes: int) -> None:
    """Leave `free_bytes` on the disk, or none where a writer takes them meanwhile."""
    space = os.statvfs(disk)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for _ in range(max(0, space.f_bavail * space.f_frsize - free_bytes) // 4096):
            file.write(bytes(4096))


def _seen(root: Path) -> Counter[str]:
    """Leases in the catalog as it lies there."""
    with duckdb.connect(root / layout.CATALOG, read_only=True) as client:
        return _count(client)


def _count(connection: duckdb.DuckDBPyConnection) -> Counter[str]:
    rows = connection.execute("SELECT lease_id FROM lease_event WHERE writer = 'w' AND lease_id <> 'next'").fetchall()
    return Counter(name for (name,) in rows)


if __name__ == "__main__":
    main()
