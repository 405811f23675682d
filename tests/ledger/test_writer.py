import json
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from rose.events import DeviceSlice, Power
from rose.ledger.files import segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests import programs
from tests.ledger.conftest import ask, record
from tests.long_form import usual

_ENDLESS = """
import sys
from rose.events import Lease, Power
from rose.ledger.writer import LedgerWriter
writer = LedgerWriter.open(sys.argv[1], "w", "r", flush_interval_s=0.01)
n = 0
while True:
    writer.record(Power(t0_ns=n, t1_ns=n + 1, power_mw=1, source="rapl"))
    lease = Lease(action="renewed", lease_id="l", kv_budget_bytes=n, compute_share=1.0, expires_at_us=1)
    print(writer.record(lease), flush=True)
    n += 1
"""


def _power(n=0):
    return Power(t0_ns=n, t1_ns=n + 1, power_mw=1, source="rapl")


def _slice(n):
    rest = dict.fromkeys(("rollout_ns", "train_ns", "sync_ns", "activation_ns", "headroom_ns"), 0)
    return DeviceSlice(device_id="d", t0_ns=100 * n, t1_ns=100 * n + 100, serving_ns=n, idle_ns=100 - n, **rest)


def _seqs(root, writer="w"):
    return [seq for (seq,) in ask(root, "SELECT seq FROM event WHERE writer = ? ORDER BY seq", [writer])]


def test_no_acknowledged_event_is_lost_to_kill_9(tmp_path):
    root, last = tmp_path / "ledger", -1
    luck = random.Random(7)
    for _ in range(usual(2, long=20)):
        with programs.started(_ENDLESS, root) as (process, output):
            acknowledged = [int(output.readline()) for _ in range(luck.randint(1, 20))]
            process.kill()
            # Lines still in the pipe were acknowledged too; the last may be cut short.
            acknowledged += [int(line) for line in output.read().splitlines(keepends=True) if line[-1] == "\n"]
        assert process.exitcode == -signal.SIGKILL
        seqs = _seqs(root)
        assert seqs == list(range(len(seqs)))
        assert set(acknowledged) <= set(seqs)
        assert acknowledged[0] == last + 2, "the next process goes on at the exact next seq"
        assert Ledger(root).verify().problems == []
        last = seqs[-1]


def test_a_live_writers_name_is_refused_and_free_after_its_close(tmp_path):
    with LedgerWriter.open(tmp_path, "w", "r"):
        with pytest.raises(LedgerError, match=f"writer 'w' of .* is open in the process {os.getpid()}"):
            LedgerWriter.open(tmp_path, "w", "r")
        with LedgerWriter.open(tmp_path, "other", "r") as other:
            assert other.record(_power()) == 0
    with LedgerWriter.open(tmp_path, "w", "r") as writer:
        assert writer.record(_power()) == 0


def test_durable_is_on_disk_at_once_and_the_rest_at_the_flush(tmp_path, lease):
    with LedgerWriter.open(tmp_path, "w", "r", flush_interval_s=1000) as writer:
        assert writer.record(_power()) == 0
        assert _seqs(tmp_path) == []
        assert writer.record(lease()) == 1
        assert _seqs(tmp_path) == [0, 1]
        assert writer.record(lease(), durable=False) == 2
        assert _seqs(tmp_path) == [0, 1]
        assert writer.record(_power(), durable=True) == 3
        assert _seqs(tmp_path) == [0, 1, 2, 3]
        writer.record(_power())
        writer.flush()
        assert len(_seqs(tmp_path)) == 5
        writer.record(_power())
    assert len(_seqs(tmp_path)) == 6


def test_threads_share_files_and_every_event_is_there_once(tmp_path, lease):
    threads, each = 8, 25
    with LedgerWriter.open(tmp_path, "w", "r") as writer, ThreadPoolExecutor(threads) as pool:
        given = list(pool.map(lambda _: writer.record(lease()), range(threads * each)))
    assert sorted(given) == list(range(threads * each)) == _seqs(tmp_path)
    assert len(list(tmp_path.glob("live/w/*/*.parquet"))) < threads * each, "a file was shared at least once"


def test_a_full_queue_counts_what_it_cannot_take_but_never_drops_control_events(tmp_path, lease, request_event):
    with LedgerWriter.open(tmp_path, "w", "r", flush_interval_s=1000, queue_max=3) as writer:
        assert [writer.record(request_event(output_tokens=n)) for n in range(5)] == [0, 1, 2, None, None]
        assert writer.dropped == 2
        # No room, but it may not be dropped: it waits for a flush, by which the loss is written down.
        assert writer.record(lease(), durable=False) is not None
        writer.flush()
    kinds = ask(tmp_path, "SELECT kind, detail_json FROM event ORDER BY seq")
    assert sorted(kind for kind, _ in kinds) == ["lease", "ledger", "request", "request", "request"]
    dropped = next(json.loads(detail) for kind, detail in kinds if kind == "ledger")
    assert dropped["count"] == 2
    assert dropped["kinds"]["request"]["count"] == 2
    assert dropped["kinds"]["request"]["output_tokens"] == 3 + 4


def test_a_full_queue_loses_no_nanosecond_of_a_device(tmp_path):
    slices = 50
    with LedgerWriter.open(tmp_path, "w", "r", flush_interval_s=1000, queue_max=3) as writer:
        for n in range(slices):
            writer.record(_slice(n))
        assert writer.dropped == slices - 3
    total = "SELECT count(*), min(t0_ns), max(t1_ns), sum(ns), sum(serving_ns), sum(idle_ns) FROM device_slice"
    found = ask(tmp_path, total)[0]
    assert found == (4, 0, 100 * slices, 100 * slices, sum(range(slices)), 100 * slices - sum(range(slices)))


def test_an_epoch_ends_after_its_segments_and_the_readers_follow(tmp_path, lease, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 3)
    with LedgerWriter.open(tmp_path, "w", "r") as writer:
        for count in range(1, 9):
            writer.record(lease())
            assert len(_seqs(tmp_path)) == count
    per_epoch = [len(list(folder.iterdir())) for folder in sorted(tmp_path.glob("live/w/*"))]
    assert per_epoch == [4, 4, 3], "a segment without rows begins each"
    assert Ledger(tmp_path).verify().problems == []


def test_an_epoch_is_shared_by_processes_but_not_by_versions(tmp_path, lease, monkeypatch):
    for _ in range(2):
        record(tmp_path, lease())
    assert len(list(tmp_path.glob("live/w/*"))) == 1
    newer = segments.rows.schema().append(pa.field("new_column", pa.int64()))
    monkeypatch.setattr(segments.rows, "schema", lambda: newer)
    record(tmp_path, lease())
    assert len(list(tmp_path.glob("live/w/*"))) == 2
    assert ask(tmp_path, "SELECT count(new_column), count(*) FROM stored_event")[0] == (0, 3)


def test_a_disk_that_refuses_is_heard_of_and_nothing_is_lost_when_it_recovers(tmp_path, lease):
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "r", flush_interval_s=0.02) as writer:
        writer.record(lease())
        shutil.move(root / "live" / "w", tmp_path / "away")
        writer.record(_power())
        with pytest.raises(LedgerError, match="writer 'w' cannot write to"):
            writer.record(lease())
        with pytest.raises(LedgerError, match="cannot write"):
            writer.flush()
        shutil.move(tmp_path / "away", root / "live" / "w")
        while writer.failure is not None:
            time.sleep(0.005)
    seqs = _seqs(root)
    assert seqs == list(range(len(seqs)))
    assert len(seqs) >= 3
    assert Ledger(root).verify().problems == []


def test_events_that_come_together_take_no_room_from_others_however_often_they_are_tried(tmp_path, lease):
    root = tmp_path / "ledger"
    several = [lease(event_id=f"lease-{number}") for number in range(4)]
    with LedgerWriter.open(root, "w", "r", flush_interval_s=0.02, queue_max=10) as writer:
        shutil.move(root / "live" / "w", tmp_path / "away")
        for _ in range(20):
            with pytest.raises(LedgerError, match="cannot write to"):
                writer.record_all(several)
        assert writer.record(_power()) is not None
        shutil.move(tmp_path / "away", root / "live" / "w")
        while writer.failure is not None:
            time.sleep(0.01)
        writer.record_all(several)
        assert writer.dropped == 0
    assert ask(root, "SELECT count(*) FROM lease_event") == [(4,)]
    assert ask(root, "SELECT count(*) FROM power") == [(1,)]
    assert ask(root, "SELECT count(*) FROM stored_event WHERE kind = 'lease'") == [(8,)]


def test_a_write_that_was_reported_failed_but_stands_is_not_repeated(tmp_path, lease, monkeypatch):
    """The folder's fsync may fail after the rename: the segment is there, although its writer was told otherwise."""
    real, failures = segments.write_next, [OSError(5, "Input/output error")]

    def fails_once(*arguments):
        tail = real(*arguments)
        if failures:
            raise failures.pop()
        return tail

    with LedgerWriter.open(tmp_path, "w", "r", flush_interval_s=0.01) as writer:
        monkeypatch.setattr(segments, "write_next", fails_once)
        with pytest.raises(LedgerError, match="Input/output error"):
            writer.record(lease())
        while writer.failure is not None:
            time.sleep(0.01)
        assert writer.record(lease()) == 1
    assert _seqs(tmp_path) == [0, 1]
    assert Ledger(tmp_path).verify().problems == []


def test_closing_says_how_many_events_it_could_not_write(tmp_path, lease):
    root = tmp_path / "ledger"
    writer = LedgerWriter.open(root, "w", "r", flush_interval_s=1000)
    writer.record(lease(), durable=False)
    shutil.rmtree(root / "live")
    with pytest.raises(LedgerError, match="1 events were not written"):
        writer.close()
    with pytest.raises(LedgerError, match=r"cannot write|is closed"):
        writer.record(lease())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"writer": "a b"}, "writer name 'a b'"),
        ({"run_id": ""}, "run_id is empty"),
        ({"provenance": "made up"}, "provenance must be one of live, replay, simulated, got 'made up'"),
        ({"queue_max": 0}, "queue_max 0"),
        ({"flush_interval_s": 0}, "flush_interval_s 0"),
    ],
)
def test_opening_names_what_is_wrong(tmp_path, arguments, says):
    with pytest.raises(LedgerError, match=says):
        LedgerWriter.open(tmp_path, **{"writer": "w", "run_id": "r", **arguments})
