import io
import shutil

import pyarrow.parquet as pq

from rose.events import Power
from rose.ledger.files import layout, rows, segments

DAY_US = 86_400_000_000


def powers(writer, first_seq, count, power_mw=7, *, named=False):
    """Events of the second day of 1970; with ids of a client's if `named`."""
    batch = []
    for seq in range(first_seq, first_seq + count):
        event_id = f"{writer}-{seq}" if named else None
        times = {"at_us": DAY_US + seq, "t0_ns": seq, "t1_ns": seq + 1}
        event = Power(event_id=event_id, device_id="d", power_mw=power_mw, source="rapl", **times)
        batch.append(("power", rows.encode(event)))
    return rows.table(writer, first_seq, "r", "live", batch)


def append(root, tail, count, power_mw=7, *, named=False):
    return segments.write_next(root, tail, powers(tail.writer, tail.next_seq, count, power_mw, named=named))


def write(root, writer, *, epochs=1, per_epoch=2, power_mw=lambda seq: 7, named=False):
    """Segments of two events each, from where the writer stands; `power_mw` is asked with the first seq of each."""
    tail = segments.recover(root, writer)
    if tail.epoch < 0:
        tail = segments.begin_epoch(root, tail)
    for epoch in range(epochs):
        if epoch:
            tail = segments.begin_epoch(root, tail)
        for _ in range(per_epoch):
            tail = append(root, tail, 2, power_mw(tail.next_seq), named=named)
    return tail


def parquet(table, **options):
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def rewritten(root, make):
    """Put another history into the place of the ledger `root`: the same ledger by its id, made by `make` anew."""
    other = root.with_name(f"{root.name}-rewritten")
    other.mkdir()
    shutil.copy(root / layout.MARKER, other / layout.MARKER)
    make(other)
    shutil.rmtree(root)
    other.rename(root)
