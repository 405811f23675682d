from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb

from rose import events
from rose.ledger import catalog, segments
from rose.ledger.growth.compaction import compact
from rose.ledger.reading import pinned
from rose.ledger.writer import LedgerWriter


def lost(connection: duckdb.DuckDBPyConnection) -> int:
    (row,) = connection.execute("SELECT sum(tokens_lost) FROM preemption").fetchall()
    return int(row[0])


def cut(tokens: int) -> events.Preemption:
    return events.Preemption(action="cut", reason="serving has work", tokens_lost=tokens)


def test_a_pinned_connection_reads_the_ledger_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "run", "live") as writer:
        writer.record(cut(1))
    tail = segments.recover(root, "w")
    assert tail is not None
    segments.begin_epoch(root, tail)
    compact(root, grace_s=0)
    assert list(root.glob("compacted/w/*.parquet"))
    with LedgerWriter.open(root, "w", "run", "live") as writer, closing(catalog.connect(root)) as connection:
        writer.record(cut(2))
        pinned.pin(connection, root)
        assert lost(connection) == 3
        writer.record(cut(4))
        assert lost(connection) == 3
        pinned.unpin(connection)
        assert lost(connection) == 7
