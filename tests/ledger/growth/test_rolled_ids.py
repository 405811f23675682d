"""The files of ids that the roll-ups count: what is written of them, what is read, and how they come and go."""

import itertools
import json
import math
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.events import Power
from rose.ledger.files import layout, rolled, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import compaction, rollup
from rose.ledger.growth.archive import archive
from rose.ledger.growth.rollup import merged_files
from rose.ledger.ledger import Ledger
from rose.ledger.verify import sum_faults
from rose.ledger.writer import LedgerWriter
from tests import programs
from tests.ledger.conftest import ask, record
from tests.long_form import usual

MERGED_MAX = 1000


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 1)
    return layout.create(tmp_path / "ledger")


def write(root, *event_ids, writer="a", run_id="r"):
    plain = {"power_mw": 1, "source": "rapl"}
    powers = [Power(event_id=name, at_us=n, t0_ns=n, t1_ns=n, **plain) for n, name in enumerate(event_ids, start=1)]
    with LedgerWriter.open(root, writer, run_id) as log:
        log.record_all(powers)
    record(root, Power(at_us=1, t0_ns=1, t1_ns=2, **plain), writer=writer, run_id=run_id, durable=True)


def counted(root):
    return int(ask(root, "SELECT sum(events)::BIGINT FROM daily_event WHERE kind = 'power'")[0][0])


def numbers_of_ids(root):
    return {Path(path).stem: pq.read_metadata(root / path).num_rows for path in rolled.newest(root).ids}


def in_folder(root):
    return {path.stem for path in (root / rolled.ID_FOLDER).iterdir()}


@given(st.lists(st.integers(0, 3 * MERGED_MAX), max_size=200))
def test_files_of_ids_are_few_and_each_id_is_written_again_few_times(batches):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollup, "_MERGED_IDS_MAX", MERGED_MAX)
        files = []
        for number, new in enumerate(batches):
            first = len(files) - merged_files(map(len, reversed(files)), new)
            assert new or first == len(files), "without new ids nothing is written"
            if new:
                files[first:] = [[times + 1 for file in files[first:] for times in file] + [1] * new]
            for one, next_one in itertools.pairwise(files):
                assert len(one) > 2 * len(next_one) or len(one) + len(next_one) > MERGED_MAX
            total = sum(map(len, files))
            assert total == sum(batches[: number + 1])
            assert len(files) <= 2 + math.log2(MERGED_MAX) + 2 * total / MERGED_MAX
            # A file that is merged is at most two thirds of the one that it is merged into.
            assert all(times <= 1 + math.log(MERGED_MAX, 1.5) for file in files for times in file)


def test_a_late_retry_of_an_id_in_a_merged_file_counts_once(root):
    for number in range(2):
        write(root, f"id-{number}", f"more-{number}")
        rollup.roll_up(Ledger(root), grace_s=0)
    assert max(numbers_of_ids(root).values()) > 2, "the first ids were merged"
    before = counted(root)
    write(root, "id-0", "id-1", "more-1", writer="b")
    assert counted(root) == before + 1, "what closed the epoch"
    rollup.roll_up(Ledger(root), grace_s=0)
    assert counted(root) == before + 1
    assert sum(numbers_of_ids(root).values()) == 4
    write(root, "id-0", writer="b", run_id="another")
    assert counted(root) == before + 3
    assert Ledger(root).verify().problems == []
    assert sum_faults(root) == ([], None, ())


@pytest.mark.long
@pytest.mark.parametrize("moment", usual(["rename"], long=["rename", "replace"]))
def test_kill_9_before_a_file_of_ids_counts(root, moment):
    """`replace` puts the file of ids into place, `rename` the generation that names it."""
    write(root, "a", "b")
    rollup.roll_up(Ledger(root))
    write(root, "c")
    before = counted(root)
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from rose.ledger.growth import rollup\n"
        f"real = Path.{moment}\n"
        "def die(path, target):\n"
        "    if path.name in ('.000001.tmp', 'merged.parquet'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(path, target)\n"
        f"Path.{moment} = die\n"
        f"rollup.roll_up({str(root)!r})\n"
    )
    assert programs.run(code) == (-signal.SIGKILL, "")
    assert in_folder(root) == ({"000000", "000001"} if moment == "rename" else {"000000"})
    assert numbers_of_ids(root) == {"000000": 2}
    assert counted(root) == before
    assert Ledger(root).verify().problems == []
    # Nobody's: the retry of an id in it counts until a generation names it.
    rollup.roll_up(Ledger(root), grace_s=0)
    assert counted(root) == before
    assert numbers_of_ids(root) == {"000001": 3}
    assert Ledger(root).verify().problems == []
    assert sum_faults(root) == ([], None, ())


def test_a_damaged_file_of_ids_is_named_and_not_merged(root):
    write(root, "a")
    rollup.roll_up(Ledger(root))
    table = pq.read_table(root / rolled.id_file(0))
    pq.write_table(table.set_column(2, "event_id", pa.array(["x"])), root / rolled.id_file(0))
    assert Ledger(root).verify().problems == ["rollup/ids/000000.parquet: its bytes were changed after it was written"]
    assert sum_faults(root)[0] == ["rollup/ids: 2 rows are not the ids of their events"]
    write(root, "b")
    with pytest.raises(LedgerError, match=r"rollup/ids/000000.parquet was changed after it was written"):
        rollup.roll_up(Ledger(root))
    (root / rolled.id_file(0)).unlink()
    assert Ledger(root).verify().problems == ["rollup/ids/000000.parquet: it is missing"]
    (root / rolled.ID_FOLDER / "x.parquet").touch()
    assert "rollup/ids/x.parquet: a foreign name: no file of a ledger has it" in Ledger(root).verify().problems


def test_roll_ups_of_another_form_are_made_anew_from_the_events(root, tmp_path):
    write(root, "a")
    rollup.roll_up(Ledger(root))
    compaction.compact(Ledger(root), grace_s=0)
    before = counted(root)
    coverage = root / "rollup/000000/coverage.json"
    content = json.loads(coverage.read_bytes())
    coverage.write_text(json.dumps({**content, "form": rolled.FORM - 1}))
    assert counted(root) == before, "from the events"
    assert sum_faults(root) == ([], "rollup/000000 is of another version of ROSE; the next roll-up makes it anew", ())
    shutil.copytree(root, tmp_path / "copy")
    assert rollup.roll_up(Ledger(tmp_path / "copy")).generation == 1
    assert counted(tmp_path / "copy") == before
    coverage.write_text(json.dumps(content))
    assert archive(Ledger(root), older_than_days=1, to=str(tmp_path / "away"), delete=True, grace_s=0).parts
    coverage.write_text(json.dumps({**content, "form": rolled.FORM - 1}))
    with pytest.raises(LedgerError, match=r"restore it with `rose ledger restore`, roll up, and archive again"):
        rollup.roll_up(Ledger(root))
