"""Writers killed with -9, also while their disk fills up: acknowledged events are in the views, once."""

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
from rose.ledger.files import catalog, layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.terminal import echo

_DISK_BYTES = 6 * 1024**2
_LEASE = {"action": "renewed", "kv_budget_bytes": 1, "compute_share": 1.0, "expires_at_us": 1}

#: Records queued events and a durable one in a loop, and prints the id of each event acknowledged as durable.
#: On a small disk epochs have a few segments, so that epochs begin, merge and go often.
_WRITER = """
import sys, time
from contextlib import suppress
from rose.events import Lease, Power
from rose.ledger.files import segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth.compaction import compact
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
root, life, how = sys.argv[1:]
if how != "plain":
    segments.SEGMENTS_PER_EPOCH = 4
writer = LedgerWriter.open(root, "w", "r", "simulated", flush_interval_s=0.005)
n = 0
while True:
    for _ in range(50 if how == "plain" else 5):
        writer.record(Power(t0_ns=n, t1_ns=n + 1, power_mw=1, source="other"))
    name = f"{life}-{n}"
    n += 1
    try:
        writer.record(Lease(lease_id=name, event_id=name, **LEASE))
        print(name, flush=True)
    except LedgerError:
        print("refused", flush=True)
        time.sleep(0.005)
    if n % 20 == 0 and how == "compact":
        with suppress(LedgerError):
            compact(Ledger(root), 0)
""".replace("LEASE", repr(_LEASE))


def measure(report: Report, folder: Path) -> None:
    trials = 5 if report.quick else 200
    root, luck = folder / "ledger", random.Random(3)
    acknowledged: set[str] = set()
    for life in range(trials):
        early = luck.random() < 0.1
        with _started(root, life, "plain") as process:
            first = [] if early else [_line(process)]
            time.sleep(luck.uniform(0, 0.5 if early else 0.15))
            acknowledged.update(first, _killed(process))
    with catalog.connect(root) as connection:
        seqs = connection.execute("SELECT seq FROM event WHERE writer = 'w' ORDER BY seq").fetchall()
        names = _count(connection)
    report.claim(f"acknowledged events lost in {trials} kill -9", len(acknowledged - set(names)), "events", 0, "lower")
    report.claim("  events that came twice", names.total() - len(names), "events", 0, "lower")
    report.claim("  gaps in seq", len(seqs) and seqs[-1][0] + 1 - len(seqs), "events", 0, "lower")
    report.claim("  problems that verify finds", len(Ledger(root).verify().problems), "problems", 0, "lower")
    report.detail["kills"] = {"trials": trials, "acknowledged": len(acknowledged), "events": len(seqs)}


def _started(root: Path, life: int, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(root), str(life), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _killed(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    process.send_signal(signal.SIGKILL)
    return [line.strip() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]


def measure_full_disk(report: Report, folder: Path) -> None:
    """Fill the disk at a random byte, and kill the writer at a random moment."""
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
    command = [sys.executable, "-m", "benchmarks.ledger.kills", str(disk), str(trials)]
    inside = f'mount -t tmpfs -o size={_DISK_BYTES} none {disk} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside, "sh", *command], stdout=subprocess.PIPE, text=True, check=True
    )
    totals: dict[str, Any] = json.loads(done.stdout)
    report.detail["full_disk"] = {"trials": trials, **totals}
    for name, count in totals["claims"].items():
        report.claim(name.format(trials=trials), count, "events", 0, "lower")


def main() -> None:
    disk, trials = Path(sys.argv[1]), int(sys.argv[2])
    luck = random.Random(15)
    totals, claims = Counter[str](), Counter[str]()
    for life in range(trials):
        counts, failures = trial(disk, life, luck)
        totals.update(counts)
        claims.update(failures)
        for path in disk.iterdir():
            subprocess.run(["rm", "-rf", path], check=True)
    print(json.dumps({**totals, "claims": claims}))


def trial(disk: Path, life: int, luck: random.Random) -> tuple[dict[str, int], dict[str, int]]:
    root, ballast = disk / "ledger", disk / "ballast"
    # Most faults show where the catalog has barely enough room, or barely too little.
    free_bytes = luck.choice((luck.randrange(900_000), luck.randrange(600_000), luck.randrange(30_000)))
    merging = luck.random() < 0.3
    early = luck.random() < 0.15
    if early:
        _fill(disk, ballast, free_bytes)
    with _started(root, life, "compact" if merging else "") as process:
        acknowledged = [_line(process)]
        if not early:
            time.sleep(luck.uniform(0, 0.4))
            _fill(disk, ballast, free_bytes)
        time.sleep(luck.uniform(0, 1.0))
        acknowledged += _killed(process)
    refused = "refused" in acknowledged
    names = set(filter(None, acknowledged)) - {"refused"}
    then = Counter[str]()
    if names:
        with duckdb.connect(root / layout.CATALOG, read_only=True) as client:
            then = _count(client)
    with closing(catalog.connect(root)) if names else nullcontext() as reader:
        read = Counter() if reader is None else _count(reader)
    ballast.unlink(missing_ok=True)
    opened = True
    try:
        with LedgerWriter.open(root, "w", "r", "simulated") as writer:
            writer.record(Lease(lease_id="next", **_LEASE))  # type: ignore[arg-type]
    except LedgerError as error:
        echo(f"trial {life}: {error}", err=True)
        opened = False
    with closing(catalog.connect(root)) as connection:
        later = _count(connection)
        events = Counter(
            id for (id,) in connection.execute("SELECT event_id FROM event WHERE kind = 'lease'").fetchall()
        )
        seqs = connection.execute(
            "SELECT count(*), count(DISTINCT seq), max(seq) + 1 FROM stored_event WHERE writer = 'w'"
        )
        count, distinct, end = seqs.fetchone() or (0, 0, 0)
    problems = Ledger(root).verify().problems
    for problem in problems:
        echo(f"trial {life}: {problem}", err=True)
    counts = {"acknowledged": len(names), "events": count, "refusals": refused, "compactions": merging}
    doubled = sum(number - 1 for number in (*then.values(), *later.values(), *events.values())) + count - distinct
    return counts, {
        "acknowledged events not seen on a full disk, {trials} kill -9": len(names - set(then)),
        "  not read by a connection of ROSE": len(names - set(read)),
        "  not seen once there is room": len(names - set(later)) + len(names - set(events)),
        "  events that came twice": doubled,
        "  gaps in seq": (end or 0) - distinct,
        "  problems that verify finds": len(problems),
        "  names that could not be opened again once there was room": not opened,
    }


def _fill(disk: Path, ballast: Path, free_bytes: int) -> None:
    space = os.statvfs(disk)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for _ in range(max(0, space.f_bavail * space.f_frsize - free_bytes) // 4096):
            file.write(bytes(4096))


def _count(connection: duckdb.DuckDBPyConnection) -> Counter[str]:
    rows = connection.execute("SELECT lease_id FROM lease_event WHERE writer = 'w' AND lease_id <> 'next'").fetchall()
    return Counter(name for (name,) in rows)


if __name__ == "__main__":
    main()
