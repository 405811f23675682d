from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rose.ledger import catalog, layout, segments
from rose.ledger.growth import compaction, lake
from rose.ledger.layout import LedgerError
from rose.ledger.writer import LedgerWriter

#: Runs SQL with the DuckDB of the other environment, then counts rows of views. arguments: file of SQL, query.
_CLIENT = """
import glob, json, os, sys
import duckdb, duckdb_extension_ducklake
home = os.path.dirname(duckdb_extension_ducklake.__file__)
(extension,) = glob.glob(os.path.join(home, "**", "*.duckdb_extension"), recursive=True)
with duckdb.connect() as connection:
    connection.execute(f"LOAD '{extension}'")
    connection.execute(open(sys.argv[1]).read())
    connection.execute("USE lake")
    print(json.dumps(connection.execute(sys.argv[2]).fetchall()))
"""


@pytest.fixture(scope="module")
def client() -> str:
    """Python of an environment with DuckDB and its ducklake extension."""
    found = os.environ.get("ROSE_DUCKLAKE_PYTHON", "")
    if not Path(found).is_file():
        pytest.skip(
            "no DuckLake client: python -m venv lake; lake/bin/pip install duckdb==1.5.5 "
            "duckdb-extension-ducklake==1.5.5; export ROSE_DUCKLAKE_PYTHON=$PWD/lake/bin/python"
        )
    return found


@pytest.fixture
def root(tmp_path: Path, lease: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger of two compacted files and an open epoch."""
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    for first in (0, 10):
        _write(tmp_path / "ledger", lease, first)
    return tmp_path / "ledger"


def _write(root: Path, lease: Any, first: int) -> None:
    with LedgerWriter.open(root, "w", "r") as writer:
        for n in range(first, first + 5):
            writer.record(lease(lease_id=f"l{n}", event_id="same" if n in (0, 11) else None))
    compaction.compact(root, grace_s=0)


def _compacted(root: Path) -> list[str]:
    parts = [part for writer in layout.writers(root) for part in layout.parts(root, writer)]
    return [part.pattern for part in parts if part.state == "compacted"]


def _ask(client: str, script: str, query: str, folder: Path) -> Any:
    (folder / "script.sql").write_text(script)
    command = [client, "-c", _CLIENT, str(folder / "script.sql"), query]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_compacted_file_gets_a_second_name_and_no_copy(root: Path, tmp_path: Path) -> None:
    script = lake.update(root, tmp_path / "lake.ducklake")
    names = _compacted(root)
    assert len(names) >= 2
    for name in names:
        link = tmp_path / "lake.ducklake.files" / name
        assert link.samefile(root / name)
        assert str(link) in script
    assert lake.update(root, tmp_path / "lake.ducklake") == script


def test_a_lake_in_the_ledger_or_that_is_none_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="lies in the ledger"):
        lake.update(root, root / "lake.ducklake")
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(LedgerError, match="cannot read the DuckLake catalog"):
        lake.update(root, tmp_path / "thesis.txt")


def test_the_lake_holds_the_compacted_events_once_and_every_view(client: str, root: Path, tmp_path: Path) -> None:
    at = tmp_path / "lake.ducklake"
    files = ", ".join(f"'{root}/{name}'" for name in _compacted(root))
    with catalog.connect(root) as connection:
        wanted = connection.execute(f"SELECT count(*) FROM read_parquet([{files}], union_by_name = true)").fetchall()
    script = lake.update(root, at)
    counts = "SELECT (SELECT count(*) FROM stored_event)"
    for _ in range(2):  # The script may be run again.
        assert _ask(client, script, counts, tmp_path) == [[wanted[0][0]]]
    assert "nothing to do" in lake.update(root, at)
    every = " UNION ALL ".join(f"SELECT count(*) FROM {view}" for view in lake.VIEWS)
    assert len(_ask(client, lake.update(root, at), every, tmp_path)) == len(lake.VIEWS)
    retried = _ask(client, lake.update(root, at), "SELECT count(*) FROM event WHERE event_id = 'same'", tmp_path)
    assert retried == [[1]]


def test_what_compaction_merged_is_replaced(
    client: str, root: Path, tmp_path: Path, lease: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = tmp_path / "lake.ducklake"
    distinct = "SELECT count(*), count(DISTINCT (writer, seq)) FROM stored_event"
    _ask(client, lake.update(root, at), distinct, tmp_path)
    monkeypatch.setattr(compaction, "FANOUT", 2)
    _write(root, lease, 20)
    compaction.compact(root, grace_s=0)
    compaction.compact(root, grace_s=0)
    ((count, once),) = _ask(client, lake.update(root, at), distinct, tmp_path)
    assert count == once
    listed = _ask(client, lake.update(root, at), "FROM ducklake_list_files('lake', 'stored_event')", tmp_path)
    assert {row[0] for row in listed} == {f"{at}.files/{name}" for name in _compacted(root)}
    assert "nothing to do" in lake.update(root, at)


def test_ducklake_s_own_housekeeping_takes_nothing_from_the_ledger(client: str, root: Path, tmp_path: Path) -> None:
    at = tmp_path / "lake.ducklake"
    before = {name: (root / name).read_bytes() for name in _compacted(root)}
    script = lake.update(root, at) + (
        "DROP VIEW job; DELETE FROM stored_event; CHECKPOINT lake;"
        "CALL ducklake_expire_snapshots('lake', versions => [0, 1, 2]);"
        "CALL ducklake_cleanup_old_files('lake', cleanup_all => true);"
        "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true);"
    )
    _ask(client, script, "SELECT 1", tmp_path)
    assert {name: (root / name).read_bytes() for name in _compacted(root)} == before


def test_an_older_duckdb_opens_the_catalog(client: str, root: Path) -> None:
    query = (
        "import duckdb; print(duckdb.connect('ledger.duckdb', read_only=True).sql('FROM lease').count('*').fetchall())"
    )
    done = subprocess.run([client, "-c", query], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    with catalog.connect(root) as connection:
        wanted = connection.execute("SELECT count(*) FROM lease").fetchall()
    assert done.stdout.strip() == str(wanted), done.stderr
