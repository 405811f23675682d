"""Ledgers that an adversary forges: one of every kind of part, and other histories of the same ledger."""

import dataclasses
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import duckdb

from rose.errors import UserError
from rose.events import Verdict
from rose.ledger.files import catalog, layout, rolled, rows, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.ledger import Ledger
from rose.pricing.answers import run_report
from tests.ledger.evidence import ledgers
from tests.pricing.conftest import sample_events

POWER_MW = 7


class Place:
    def __init__(self, home):
        self.root, self.kept = home / "ledger", home / "kept"
        make(layout.create(self.root))
        self.root.rename(self.kept)

    @contextmanager
    def copied(self):
        shutil.copytree(self.kept, self.root)
        try:
            yield self.root
        finally:
            shutil.rmtree(self.root)


@contextmanager
def in_memory():
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rose-adversary-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def append(root, tail, count, power_mw=POWER_MW):
    return ledgers.append(root, tail, count, power_mw, named=True)


def write(root, writer, epochs, per_epoch, power_mw=POWER_MW):
    ledgers.write(root, writer, epochs=epochs, per_epoch=per_epoch, power_mw=lambda _: power_mw, named=True)


def _write_priced(root, writer, *, honest):
    tail = segments.begin_epoch(root, segments.recover(root, writer))
    events = [_other(event, honest) for event in sample_events()]
    third = -(-len(events) // 3)
    for begin in range(0, len(events), third):
        batch = [(event.kind, rows.encode(event)) for event in events[begin : begin + third]]
        tail = segments.write_next(root, tail, rows.table(writer, tail.next_seq, "run", "replay", batch))


def _other(event, honest):
    if honest or not isinstance(event, Verdict) or event.correct is None:
        return event
    return dataclasses.replace(event, correct=not event.correct)


def make(root, power_mw=POWER_MW):
    """Archived, merged, superseded and live parts of several writers, rolled up and verified; `b` can be priced."""
    write(root, "old", epochs=2, per_epoch=2, power_mw=power_mw)
    compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    archive.archive(Ledger(root), older_than_days=1, to=f"{root}-away", delete=True, grace_s=0)
    write(root, "a", epochs=3, per_epoch=2, power_mw=power_mw)
    _write_priced(root, "b", honest=power_mw == POWER_MW)
    compaction.compact(Ledger(root), grace_s=3600)
    rollup.roll_up(Ledger(root), grace_s=3600)
    states = [part.state for writer in ("old", "a") for part in layout.chain(root, writer)]
    assert states == ["archived", "live", "compacted", "live"]
    assert any(superseded for _, superseded in layout.all_parts(root, "a"))
    assert len(rolled.generations(root)) == 2
    catalog.connect(root).close()
    assert Ledger(root).verify().problems == []
    return root


def figures_of(root):
    try:
        with catalog.connect(root) as connection:
            sums = [f"(SELECT (count(*), sum(hash(one))) FROM {view} AS one)" for view in catalog.VIEWS]
            return connection.execute(f"SELECT {', '.join(sums)}").fetchall()
    except (LedgerError, duckdb.Error) as error:
        return f"unreadable: {type(error).__name__}"


def report_of(root, seen):
    """What `rose report` says of the run, but for when it was made; or why it says nothing."""
    try:
        said = run_report.build(Ledger(root), "run").to_json()
    except (UserError, duckdb.Error) as error:
        return f"unreadable: {type(error).__name__}"
    del said["stamp"]
    return said
