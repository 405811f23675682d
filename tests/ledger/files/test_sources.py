"""Where a catalog looks for the files of its ledger: in any client, from any working directory, after a move."""

import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from rose.ledger.files import catalog, layout, rows, sources
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from rose.ledger.reading.query import query
from tests.ledger.conftest import ask, close_epochs, copied, record
from tests.long_form import usual

NAMES = ["plain", 'it\'s "quoted"', "台帳 für alle", "year=2026", "{braces} $HOME %20", "live/w/000000"]
ALL_NAMES = "/".join(NAMES)
_CLIENT = "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).sql('from lease').fetchall()[0][6])"


def _client(path, folder):
    run = subprocess.run([sys.executable, "-c", _CLIENT, path], cwd=folder, capture_output=True, text=True, check=False)
    return run.stdout.strip() + run.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory, lease):
    root = record(tmp_path_factory.mktemp("made") / "ledger", lease())
    close_epochs(root)
    compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    assert [part.state for part in layout.parts(root, "w")] == ["compacted", "live"]
    return root


@pytest.fixture
def make(made, tmp_path):
    def run(name):
        root = copied(made, tmp_path / name / "ledger")
        catalog.refresh(root)
        return root

    return run


def _reads_well(root, elsewhere):
    assert _client(root / layout.CATALOG, elsewhere) == "l"
    assert query(Ledger(root), "SELECT lease_id FROM lease").rows == [("l",)]
    assert "year" not in [column for column, *_ in ask(root, "DESCRIBE event")]
    with duckdb.connect(root / layout.CATALOG, read_only=True) as client:
        definition = client.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'stored_event'").fetchall()[0][0]
        client.execute("SELECT count(*) FROM daily_event").fetchall()
    assert sources.place(definition) == root


def test_any_client_reads_from_any_working_directory(make, tmp_path):
    root = make(ALL_NAMES)
    _reads_well(root, tmp_path)
    assert _client(Path(layout.CATALOG), root) == "l"


def test_many_merged_files_are_read_as_few_are(make, monkeypatch, lease):
    root, schema = make("plain"), rows.schema()
    fewer = schema.remove(schema.get_field_index("power_mw"))
    with monkeypatch.context() as patch:
        patch.setattr(rows, "schema", lambda: fewer)
        record(root, lease(), writer="fewer")
        close_epochs(root)
    assert compaction.compact(Ledger(root)).files_written
    (merged,) = root.glob("compacted/fewer/*.parquet")
    assert "power_mw" not in pq.read_schema(merged).names
    answers = []
    for many in (10**9, 1):
        monkeypatch.setattr(sources, "_MERGED_MANY", many)
        with catalog.connect(root) as connection:
            names = ("stored_event", "event", "power", "daily_event")
            views = [connection.execute(f"DESCRIBE {view}").fetchall() for view in names]
            stored = connection.execute("FROM event ORDER BY writer, seq").fetchall()
            answers.append((views, stored, connection.execute("FROM daily_event ORDER BY ALL").fetchall()))
        assert Ledger(root).verify().problems == []
    assert answers[0] == answers[1]
    assert answers[0][1]


def test_many_merged_files_are_not_opened_to_make_a_catalog(make, monkeypatch, lease):
    """Each writer makes one with each epoch; so a damaged one keeps none of them out, and whoever reads it is told."""
    root = make("plain")
    monkeypatch.setattr(sources, "_MERGED_MANY", 1)
    (merged,) = root.glob("compacted/w/*.parquet")
    merged.write_bytes(b"no Parquet")
    record(root, lease(), writer="other")
    with catalog.connect(root) as connection, pytest.raises(duckdb.Error, match=merged.name):
        connection.execute("SELECT lease_id FROM lease").fetchall()


def test_a_ledger_that_was_moved_is_sound_and_the_next_reader_puts_it_right(make, tmp_path):
    root = make("old")
    assert Ledger(root).verify().notes == []
    for name in usual([ALL_NAMES], long=NAMES):
        old, root = root, tmp_path / name / "moved"
        root.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(old, root)
        report = Ledger(root).verify()
        assert report.problems == []
        assert len(report.notes) == 1
        assert f"it reads the files at {old}, from where the ledger was moved" in report.notes[0]
        assert query(Ledger(root), "SELECT lease_id FROM lease").rows == [("l",)]
        _reads_well(root, tmp_path)
        assert Ledger(root).verify().notes == []


def test_an_edit_of_a_moved_catalog_is_no_move(make, tmp_path):
    root = tmp_path / "moved"
    shutil.move(make("old"), root)
    with duckdb.connect(root / layout.CATALOG) as client:
        client.execute("CREATE MACRO main.sum(x) AS 2 * x")
    report = Ledger(root).verify()
    assert any("macro main.sum is foreign" in problem for problem in report.problems)
    assert report.notes == []
