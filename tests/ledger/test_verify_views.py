import signal
import threading
import time

import duckdb
import pytest

from rose.ledger.files import catalog, layout, segments, sources
from rose.ledger.files.examine import Seen
from rose.ledger.ledger import Ledger
from rose.ledger.verify import view_faults
from tests import programs
from tests.ledger.evidence import ledgers


@pytest.fixture
def late(tmp_path, monkeypatch):
    root = layout.create(tmp_path / "ledger")
    tail = ledgers.write(root, "a")
    catalog.refresh(root)
    segments.begin_epoch(root, tail)
    monkeypatch.setattr("rose.ledger.verify._RETRY_S", 0.1)
    return root


def problems(root):
    return view_faults(root, Seen())[0]


@pytest.mark.parametrize("step", ["compaction", "roll-up"])
def test_upkeep_that_is_killed_before_the_catalog_leaves_no_fault(late, step):
    catalog.refresh(late)
    ledgers.write(late, "b", epochs=2)
    program = (
        "import os, signal, sys; from rose.ledger.files import catalog\n"
        "from rose.ledger.growth import compaction, rollup; from rose.ledger.ledger import Ledger\n"
        "refresh, calls = catalog.refresh, []\n"
        "def killed(root):\n"
        "    calls.append(root)\n"
        "    if len(calls) == 1: return refresh(root)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "catalog.refresh = killed\n"
        f"{'compaction.compact' if step == 'compaction' else 'rollup.roll_up'}(Ledger(sys.argv[1]), 0)"
    )
    assert programs.run(program, late) == (-signal.SIGKILL, "")
    assert Ledger(late).verify().problems == []
    assert any("it is stale" in note for note in Ledger(late).verify().notes)
    catalog.connect(late).close()
    assert not any("it is stale" in note for note in Ledger(late).verify().notes)


def test_a_catalog_that_takes_its_columns_from_another_part_is_no_fault(late, monkeypatch):
    """From which part depends on what could be read, and what was merged already, when it was made."""
    for part in ("a/000000", "a/000001", "b/000000"):
        ledgers.write(late, part[0], epochs=1)
        with monkeypatch.context() as patch:
            patch.setattr(sources, "has_the_columns", lambda epoch, part=part: str(epoch).endswith(part))
            catalog.refresh(late)
        assert problems(late) == [], part


@pytest.mark.parametrize(
    "edit",
    [
        "FROM read_parquet('{root}/live/a/000000/*.parquet') WHERE false",
        "SELECT * REPLACE (power_mw + 1 AS power_mw) FROM read_parquet('{root}/live/a/000000/*.parquet')",
        "FROM read_parquet('{root}/live/a/000001/*.parquet')",
    ],
)
def test_a_source_that_was_edited_is_a_fault(late, edit):
    with duckdb.connect(late / layout.CATALOG) as connection:
        connection.execute(f"CREATE OR REPLACE VIEW internal.stored_event AS {edit.format(root=late)}")
    assert any("it was edited" in problem for problem in problems(late))


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ("VIEW device_slice", "'never billed'"),
        ("VIEW device_slice", "NULL"),
        ("COLUMN device_slice.rollout_ns", "'never billed'"),
        ("COLUMN device_slice.rollout_ns", "NULL"),
        ("VIEW internal.stored_event", "'never billed'"),
        ("VIEW internal.device_slice", "'never billed'"),
    ],
)
def test_a_forged_comment_is_a_fault(late, described, text):
    catalog.refresh(late)
    with duckdb.connect(late / layout.CATALOG) as connection:
        connection.execute(f"COMMENT ON {described} IS {text}")
    (problem,) = problems(late)
    assert described.split()[1] in problem


def test_the_catalog_of_parts_that_are_being_moved_is_waited_for(late):
    with duckdb.connect(late / layout.CATALOG) as connection:
        connection.execute("CREATE OR REPLACE VIEW internal.stored_event AS FROM internal.unrolled_stored_event")
    held = threading.Event()

    def move():
        with layout.locked(layout.lock_file(late, layout.PARTS_LOCK)):
            held.set()
            time.sleep(0.5)
            catalog.refresh(late)

    mover = threading.Thread(target=move)
    mover.start()
    held.wait()
    assert problems(late) == []
    mover.join()
