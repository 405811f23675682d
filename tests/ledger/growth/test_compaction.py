import errno
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rose.ledger.files import layout, rows, segments
from rose.ledger.files.layout import LedgerError, Part
from rose.ledger.growth import compaction
from rose.ledger.growth.compaction import EVENTS_MAX, FANOUT, compact, plan, unsettled
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import ask, copied, flip, record
from tests.long_form import usual

#: Reads until told to stop. The seqs of a writer have no gap, so a right total is always the highest seq plus one.
_READER = """
import sys
from pathlib import Path
from rose.ledger import catalog
reads, before, stopped = 0, 0, False
while not stopped:
    # Once more after the last change.
    stopped = Path(sys.argv[2]).exists()
    with catalog.connect(sys.argv[1]) as connection:
        found = connection.execute("SELECT count(*), max(seq) + 1, count(DISTINCT seq) FROM event WHERE writer = 'w'")
        total, expected, distinct = found.fetchone()
    assert total == (expected or 0) == distinct, (total, expected, distinct)
    assert total >= before, "an event went away"
    reads, before = reads + 1, total
    if reads == 1:
        print("begun", flush=True)
print(reads, before)
"""


@pytest.fixture(scope="module")
def root_made(tmp_path_factory, lease):
    leases = (lease(lease_id=f"l{n}", event_id="same" if n in (1, 5) else None) for n in range(7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
        return record(tmp_path_factory.mktemp("made") / "ledger", *leases)


@pytest.fixture
def root(root_made, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    return copied(root_made, tmp_path / "ledger")


def _events(root):
    return ask(root, "SELECT * FROM stored_event WHERE writer = 'w' ORDER BY seq")


def test_closed_epochs_become_one_file_and_nothing_else_changes(root):
    before = _events(root)
    assert compact(Ledger(root)) == compaction.Compaction(merged_segments=9, files_written=1, parts_removed=0)
    assert [part.pattern for part in layout.parts(root, "w")] == [
        "compacted/w/000000-000002.parquet",
        f"live/w/000003/{layout.SEGMENT_PATTERN}",
    ]
    assert _events(root) == before
    report = Ledger(root).verify()
    assert report.problems == []
    assert [(w.segments, w.events) for w in report.writers if w.writer == "w"] == [(11, 7)]


def test_what_was_merged_is_removed_after_the_grace_period(root):
    before = _events(root)
    compact(Ledger(root))
    assert compact(Ledger(root), grace_s=3600).parts_removed == 0
    assert len(layout.epochs(root, "w")) == 4
    assert compact(Ledger(root), grace_s=0).parts_removed == 3
    assert layout.epochs(root, "w") == [3]
    assert _events(root) == before
    assert Ledger(root).verify().problems == []


def test_what_was_merged_is_an_event(root):
    compact(Ledger(root))
    found = ask(root, "SELECT writer, detail_json FROM event WHERE action = 'compacted'")
    times = ask(root, "SELECT at_us FROM stored_event WHERE writer = 'w' AND seq < 6")
    with LedgerWriter.open(root, "compaction", "ledger"), pytest.raises(LedgerError, match="is open in the process"):
        compact(Ledger(root))
    manifest, _ = layout.read_manifest(root, layout.parts(root, "w")[0])
    assert (manifest["at_us_min"], manifest["at_us_max"]) == (min(times)[0], max(times)[0])
    detail = json.loads(found[0][1])
    assert found[0][0] == "compaction"
    assert (detail["file"], detail["first_seq"], detail["last_seq"]) == ("compacted/w/000000-000002.parquet", 0, 5)
    assert detail["segments"] == 9


def test_a_damaged_segment_is_not_laundered_and_keeps_no_other_writer_from_being_compacted(root, lease):
    record(root, *(lease(lease_id=f"l{n}") for n in range(5)), writer="x")
    path = next(root.glob("live/w/000001/000001-*"))
    flip(path, 20)
    with pytest.raises(LedgerError, match=f"{path.name} was changed"):
        compact(Ledger(root))
    assert not list(root.glob("compacted/w/*.json"))
    assert [part.state for part in layout.parts(root, "x")] == ["compacted", "live"]


@pytest.mark.long
def test_readers_never_notice(tmp_path, lease, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 5)
    root, stop = tmp_path / "ledger", tmp_path / "stop"
    with LedgerWriter.open(root, "w", "r") as writer:
        command = [sys.executable, "-c", _READER, root, stop]
        pipe = subprocess.PIPE
        readers = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(usual(1, long=2))]
        assert [reader.stdout.readline() for reader in readers if reader.stdout] == ["begun\n"] * len(readers)
        merged = removed = 0
        for n in range(100):
            writer.record(lease(lease_id=f"l{n}", event_id=f"e{n}" if n % 3 else None))
            if n % 20 == 19:
                done = compact(Ledger(root), grace_s=3)
                merged, removed = merged + done.merged_segments, removed + done.parts_removed
                assert Ledger(root).verify().problems == []
        stop.touch()
        said = [reader.communicate() for reader in readers]
    assert {error for _, error in said} == {""}
    assert all(int(output.split()[0]) > 1 for output, _ in said)
    assert merged > 60
    assert ask(root, "SELECT count(*) FROM lease")[0] == (100,)


_states = st.sampled_from(["compacted", "live"])
_sizes = st.lists(st.tuples(_states, st.integers(0, EVENTS_MAX), st.booleans()), max_size=60)


@given(_sizes)
@example([("live", 1, False)] * 40)
@example([("compacted", 1, False), ("compacted", EVENTS_MAX, False)])
def test_a_plan_merges_neighbours_of_one_sort_within_bounds(sizes):
    parts = [(Part("w", n, n, state), events) for n, (state, events, archived) in enumerate(sizes) if not archived]
    events_of = dict(parts)
    merges = plan(parts)
    merged = [part for run in merges for part in run]
    assert len(merged) == len(set(merged))
    assert {part for part, _ in parts if part.state == "live"} <= set(merged), "a live epoch is merged at once"
    for run in merges:
        assert [part.first for part in run] == list(range(run[0].first, run[0].first + len(run)))
        assert len({part.state for part in run}) == 1
        assert len(run) == 1 or sum(events_of[part] for part in run) <= EVENTS_MAX
        if run[0].state == "live":
            assert len(run) <= FANOUT
        else:
            assert len(run) >= FANOUT or sum(events_of[part] for part in run) > EVENTS_MAX // 2


def after(parts, batch):
    merged = Part(batch[0].writer, batch[0].first, batch[-1].last, "compacted")
    events = sum(events for part, events in parts if part in batch)
    return sorted([*(pair for pair in parts if pair[0] not in batch), (merged, events)])


_few_or_many = st.sampled_from([1, EVENTS_MAX // FANOUT, EVENTS_MAX // 3, EVENTS_MAX * 2 // 3, EVENTS_MAX + 1])
_backlogs = st.lists(st.tuples(_few_or_many, st.integers(1, usual(100, long=320))), max_size=3)


@given(st.lists(st.tuples(_backlogs, st.integers(0, 30)), max_size=4))
@example([([(1, 320), (EVENTS_MAX * 2 // 3, 40)], 30), ([], 0)])
def test_what_a_compaction_does_not_look_at_has_nothing_to_merge(calls):
    parts = []
    number = 0
    for backlog, stopped_after in calls:
        for events, count in backlog:
            parts += [(Part("w", n, n, "live"), events) for n in range(number, number + count)]
            number += count
        looked_at = unsettled(reversed(parts))
        before = parts[: len(parts) - len(looked_at)]
        stages = [looked_at]
        while merges := plan(stages[-1]):
            stages.append(after(stages[-1], merges[0]))
        assert plan(before + stages[-1]) == []
        parts = before + stages[min(stopped_after, len(stages) - 1)]


def test_wherever_a_compaction_is_stopped_the_next_one_leaves_what_it_would_have_left(tmp_path, lease, monkeypatch):
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "EVENTS_MAX", 8)
    made = tmp_path / "made"
    # Small epochs, and then so many large ones that no small file before them is looked at.
    layout.create(made)
    tail = segments.begin_epoch(made, segments.recover(made, "w"))
    for events in (1, 1, 1, 1, 4, 4, 4, 4):
        batch = [("lease", rows.encode(lease()))] * events
        tail = segments.write_next(made, tail, rows.table("w", tail.next_seq, "r", "live", batch))
        tail = segments.begin_epoch(made, tail)
    merges = compact(Ledger(undisturbed := copied(made, tmp_path / "undisturbed"))).files_written
    assert merges > 2
    real = layout.write_file
    for number in usual((1, merges - 1), long=range(1, merges)):
        root, written = copied(made, tmp_path / str(number)), list[Path]()

        def write_file(path, content, written=written, **options):
            if path.parts[-3] == "compacted":
                written.append(path)
                if len(written) > number:  # noqa: B023
                    raise OSError(errno.ENOSPC, "No space left on device")
            real(path, content, **options)

        with monkeypatch.context() as patch:
            patch.setattr(layout, "write_file", write_file)
            with pytest.raises(LedgerError, match="No space left"):
                compact(Ledger(root))
        compact(Ledger(root))
        assert layout.parts(root, "w") == layout.parts(undisturbed, "w"), number
        assert Ledger(root).verify().problems == []


def test_a_compaction_whose_catalog_finds_no_room_leaves_the_old_one_and_all_it_reads(root, monkeypatch):
    before, real, refusing = _events(root), layout.write_file, True

    def write_file(path, content, **options):
        if refusing and path.name == layout.CATALOG and list(root.glob("compacted/*/*.json")):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content, **options)

    monkeypatch.setattr(layout, "write_file", write_file)
    with duckdb.connect(root / layout.CATALOG, read_only=True) as client:
        for _ in range(2):
            with pytest.raises(LedgerError, match="No space left on device; make room"):
                compact(Ledger(root), grace_s=0)
            seen = client.execute("SELECT count(*) FROM internal.stored_event WHERE writer = 'w'").fetchone()
            assert seen == (len(before),), "nothing is removed that the catalog in place reads"
    refusing = False
    compact(Ledger(root), grace_s=0)
    assert _events(root) == before
    assert Ledger(root).verify().problems == []
