from contextlib import closing

from rose import events
from rose.ledger.files import catalog
from rose.ledger.growth.compaction import compact
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.query import pin, unpin
from tests.ledger.conftest import close_epochs, record


def lost(connection):
    (row,) = connection.execute("SELECT sum(tokens_lost) FROM preemption").fetchall()
    return int(row[0])


def cut(tokens):
    return events.Preemption(action="cut", reason="serving has work", tokens_lost=tokens)


def test_a_pinned_connection_reads_the_ledger_as_it_was(tmp_path):
    root = record(tmp_path / "ledger", cut(1), run_id="run")
    close_epochs(root)
    compact(Ledger(root), grace_s=0)
    assert list(root.glob("compacted/w/*.parquet"))
    with LedgerWriter.open(root, "w", "run", "live") as writer, closing(catalog.connect(root)) as connection:
        writer.record(cut(2))
        pin(connection, Ledger(root))
        assert lost(connection) == 3
        writer.record(cut(4))
        assert lost(connection) == 3
        unpin(connection)
        assert lost(connection) == 7
