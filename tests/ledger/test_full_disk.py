"""Durable means visible, on a disk that fills at any byte: acknowledged is in the file and in the views, or it is an
error. A plain DuckDB client looks: it reads the catalog as it lies there, and mends none.
"""

import errno
import json
import time
from pathlib import Path

import duckdb
import pytest

from rose.ledger.files import catalog, layout, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests import programs
from tests.ledger.conftest import run_on_small_disk
from tests.long_form import usual

#: Fills a file system of 8 MiB but for some KiB shortly before an epoch ends, and says which events were acknowledged,
#: which of them a client sees that changes nothing, and the same once there is room again.
_EPOCH_END = """
import json, os, pathlib, sys, time
import duckdb
from rose.events import Lease
from rose.ledger import verify
from rose.ledger.files import catalog
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
disk, free_bytes = pathlib.Path(sys.argv[1]), int(sys.argv[2]) * 1024
root, ballast = disk / "ledger", disk / "ballast"
def lease(n):
    return Lease(action="granted", lease_id=f"l{n}", kv_budget_bytes=1, compute_share=1.0, expires_at_us=1)
def seen():
    with duckdb.connect(root / "ledger.duckdb", read_only=True) as client:
        return [name for (name,) in client.execute("SELECT lease_id FROM lease_event ORDER BY seq").fetchall()]
acknowledged, refusals = [], []
with LedgerWriter.open(root, "w", "r", flush_interval_s=0.02) as writer:
    for n in range(120):
        if n == 98:
            space = os.statvfs(disk)
            ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - free_bytes))
        try:
            writer.record(lease(n))
            acknowledged.append(f"l{n}")
        except LedgerError as error:
            refusals.append(str(error))
    hidden = sorted(set(acknowledged) - set(seen()))
    with catalog.connect(root) as connection:
        events = connection.execute("SELECT count(*) FROM lease_event").fetchone()[0]
    ballast.unlink()
    while writer.failure is not None:
        time.sleep(0.005)
    writer.flush()
    later = seen()
print(json.dumps({
    "acknowledged": len(acknowledged),
    "refusals": sorted(set(refusals)),
    "hidden": hidden,
    "read": events,
    "seen_later": later == [f"l{n}" for n in range(120)],
    "problems": Ledger(root).verify().problems,
    "left": sorted(path.name for path in root.iterdir() if path.name.startswith(".")),
}))
"""

#: Its files may have a certain size at most from an epoch's end on: a catalog is larger than a segment.
_FILE_SIZE = """
import resource, signal, sys, time
import duckdb
from rose.events import Lease
from rose.ledger.files import segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.writer import LedgerWriter
segments.SEGMENTS_PER_EPOCH = 3
root, limit = sys.argv[1], int(sys.argv[2])
def seen():
    with duckdb.connect(f"{root}/ledger.duckdb", read_only=True) as client:
        return {name for (name,) in client.execute("SELECT lease_id FROM lease_event").fetchall()}
acknowledged, refused = set(), 0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with LedgerWriter.open(root, "w", "r", flush_interval_s=0.02) as writer:
    for n in range(8):
        if n == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            writer.record(
                Lease(action="granted", lease_id=f"l{n}", kv_budget_bytes=1, compute_share=1.0, expires_at_us=1)
            )
            acknowledged.add(f"l{n}")
        except LedgerError:
            refused += 1
    print("hidden:", sorted(acknowledged - seen()), "refused:", refused > 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    while writer.failure is not None:
        time.sleep(0.005)
    writer.flush()
    print("seen later:", len(seen()))
"""


def _seen(root):
    with duckdb.connect(root / layout.CATALOG, read_only=True) as client:
        return [name for (name,) in client.execute("SELECT lease_id FROM lease_event ORDER BY seq").fetchall()]


def _wait_until_written(writer):
    while writer.failure is not None:
        time.sleep(0.005)


@pytest.mark.long
@pytest.mark.parametrize("free_kib", usual([40, 330, 540], long=[40, 100, 330, 480, 540]))
def test_what_is_acknowledged_at_an_epochs_end_is_seen_however_little_room_there_is(tmp_path, free_kib):
    outcome = json.loads(run_on_small_disk(tmp_path, "8m", _EPOCH_END, free_kib))
    assert outcome["hidden"] == []
    assert outcome["read"] == outcome["acknowledged"] >= 98, "whoever reads needs no room on that disk"
    assert all("No space left on device" in refusal and "make room" in refusal for refusal in outcome["refusals"])
    assert outcome["seen_later"], "what was refused waits, and is written and shown when there is room"
    assert outcome["problems"] == outcome["left"] == []


@pytest.mark.parametrize("limit_kib", usual([100], long=[100, 250, 300, 500]))
def test_a_catalog_that_cannot_be_written_whole_replaces_none(tmp_path, limit_kib):
    code, output = programs.run(_FILE_SIZE, tmp_path / "ledger", limit_kib * 1024)
    assert code == 0
    assert output.splitlines() == ["hidden: [] refused: True", "seen later: 8"]


class _Disk:
    """What lies under `root` may be written until `writes` are done; the next is cut short, and more are refused."""

    def __init__(self, root, writes, refusals, monkeypatch):
        self.writes, self.refusals = writes, refusals
        real = Path.write_bytes

        def write(path, content):
            if root not in path.parents:
                return real(path, content)
            self.writes -= 1
            if self.writes < 0 and self.refusals > 0:
                self.refusals -= 1
                real(path, content[: len(content) * self.refusals // 7])
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return real(path, content)

        monkeypatch.setattr(Path, "write_bytes", write)


@pytest.mark.parametrize("writes", range(0, 16, usual(6, long=1)))
def test_a_disk_that_fills_at_any_write_hides_nothing_that_was_acknowledged(tmp_path, lease, writes, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    root = tmp_path / "ledger"
    LedgerWriter.open(root, "w", "r").close()
    acknowledged = []
    disk = _Disk(root, writes, 4, monkeypatch)
    for life in range(5):
        try:
            with LedgerWriter.open(root, "w", "r", flush_interval_s=0.01) as writer:
                for n in range(3):
                    name = f"l{life}-{n}"
                    try:
                        writer.record(lease(lease_id=name, event_id=name))
                        acknowledged.append(name)
                    except LedgerError as error:
                        assert "make room" in str(error)  # noqa: PT017
                    assert set(acknowledged) <= set(_seen(root))
        except LedgerError as error:
            assert "make room" in str(error)  # noqa: PT017
        assert set(acknowledged) <= set(_seen(root))
    assert disk.refusals == 0
    seen = _seen(root)
    assert len(seen) == len(set(seen))
    assert Ledger(root).verify().problems == []
    assert not list(root.glob(".*"))


def test_an_epoch_that_the_catalog_does_not_read_yet_acknowledges_nothing(tmp_path, lease, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    real, refusing = catalog.refresh, True

    def refresh(root):
        if refusing:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(root)

    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "r", flush_interval_s=0.01) as writer:
        monkeypatch.setattr(catalog, "refresh", refresh)
        for n in range(2):
            writer.record(lease(lease_id=f"l{n}"))
        for n in range(2, 4):
            with pytest.raises(LedgerError, match="No space left"):
                writer.record(lease(lease_id=f"l{n}"))
        assert _seen(root) == ["l0", "l1"]
        refusing = False
        _wait_until_written(writer)
        assert _seen(root) == [f"l{n}" for n in range(4)]
    assert all(len(list(folder.iterdir())) <= 3 for folder in root.glob("live/w/*")), "no epoch outgrows its length"


def test_a_damaged_file_that_keeps_the_catalog_from_an_epoch_is_heard_of(tmp_path, lease, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    root = tmp_path / "ledger"
    LedgerWriter.open(root, "other", "r").close()
    (damaged,) = root.glob("live/other/*/*.parquet")
    content = damaged.read_bytes()
    with LedgerWriter.open(root, "w", "r", flush_interval_s=0.01) as writer:
        damaged.write_bytes(b"damaged")
        for n in range(2):
            writer.record(lease(lease_id=f"l{n}"))
        with pytest.raises(LedgerError, match="`rose ledger verify` names what is damaged"):
            writer.record(lease(lease_id="l2"))
        damaged.write_bytes(content)
        _wait_until_written(writer)
    assert _seen(root) == ["l0", "l1", "l2"]
