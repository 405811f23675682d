import duckdb

from rose.events import BUCKETS, DeviceSlice
from rose.ledger.files import layout
from rose.ledger.growth.compaction import compact
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.charges.state import since
from tests.ledger.conftest import close_epochs


def slice_at(t0_ns):
    buckets = dict.fromkeys((f"{bucket}_ns" for bucket in BUCKETS), 0) | {"idle_ns": 1}
    return DeviceSlice(device_id="d", t0_ns=t0_ns, t1_ns=t0_ns + 1, **buckets)


def write(root, writer, count):
    with LedgerWriter.open(root, writer, "r", "replay") as ledger:
        for n in range(count):
            ledger.record(slice_at(n))
            if n % 3 == 2:
                ledger.flush()


def read(root, select):
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT writer, seq FROM ({select}) WHERE run_id = 'r' ORDER BY ALL").fetchall()
    return [(writer, seq) for writer, seq in found]


def test_what_is_read_is_not_read_again(tmp_path):
    write(tmp_path / "l", "a", 4)
    root = layout.check(tmp_path / "l")
    first = since(Ledger(root), {})
    assert read(root, first.select) == [("a", n) for n in range(4)]
    assert first.events == 4
    assert since(Ledger(root), first.marks).events == 0
    assert read(root, since(Ledger(root), first.marks).select) == []
    write(root, "a", 2)
    write(root, "b", 1)
    second = since(Ledger(root), first.marks)
    assert read(root, second.select) == [("a", 4), ("a", 5), ("b", 0)]
    assert second.events == 3


def test_a_compaction_across_the_mark_loses_nothing(tmp_path):
    root = layout.create(tmp_path / "l")
    with LedgerWriter.open(root, "a", "r", "replay") as ledger:
        ledger.record(slice_at(0), durable=True)
        mark = since(Ledger(root), {}).marks
        ledger.record(slice_at(0), durable=True)
    close_epochs(root)
    write(root, "a", 1)
    compact(Ledger(root), grace_s=0)
    found = since(Ledger(root), mark)
    assert read(root, found.select) == [("a", 1), ("a", 2)]
    assert "seq <" in found.select
