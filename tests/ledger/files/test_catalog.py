import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rose.event_columns import all_columns
from rose.ledger.files import catalog, layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import ask, record


@pytest.fixture
def root(tmp_path, lease):
    return record(tmp_path / "ledger", lease())


def test_the_event_view_has_every_column_of_every_kind(root):
    assert [row[0] for row in ask(root, "DESCRIBE event")] == [*all_columns(), "event_time"]


def test_a_ledger_without_events_has_all_views(tmp_path):
    with catalog.connect(layout.create(tmp_path)) as connection:
        for view in catalog.VIEWS:
            assert connection.execute(f"SELECT * FROM {view}").fetchall() == []


def test_new_segments_show_without_a_refresh(root, lease):
    with LedgerWriter.open(root, "w", "r") as writer, catalog.connect(root) as connection:
        made = (root / layout.CATALOG).stat().st_ino
        for count in range(2, 5):
            writer.record(lease())
            assert connection.execute("SELECT count(*) FROM event").fetchone() == (count,)
        assert (root / layout.CATALOG).stat().st_ino == made


def test_a_client_that_holds_the_catalog_for_writing_does_not_stop_readers(root):
    code = "import duckdb, sys; c = duckdb.connect('ledger.duckdb'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(duckdb.IOException, match="lock"):
            duckdb.connect(root / layout.CATALOG, read_only=True)
        assert ask(root, "SELECT count(*) FROM lease")[0] == (1,)
        holder.communicate()


@pytest.mark.parametrize("damage", [None, b"", b"not a database" * 1000])
def test_a_missing_or_damaged_catalog_is_made_again(root, damage):
    (root / layout.CATALOG).unlink()
    if damage is not None:
        (root / layout.CATALOG).write_bytes(damage)
    assert ask(root, "SELECT count(*) FROM lease")[0] == (1,)


@pytest.fixture
def another_process(root):
    catalog._compared.clear()


def test_a_catalog_that_shows_the_ledger_as_it_is_is_not_made_again(root, lease):
    before = (root / layout.CATALOG).stat().st_ino
    LedgerWriter.open(root, "w", "r").close()
    assert (root / layout.CATALOG).stat().st_ino == before
    LedgerWriter.open(root, "another", "r").close()
    assert (root / layout.CATALOG).stat().st_ino != before


@pytest.mark.usefixtures("another_process")
def test_a_refresh_that_fails_leaves_the_old_catalog(root, monkeypatch):
    before = (root / layout.CATALOG).read_bytes()
    real = Path.write_bytes

    def cut_short(path, content):
        """Neither the disk nor the system says so: a network file system may, or a failing one."""
        return real(path, content[:-1] if root in path.parents else content)

    monkeypatch.setattr(Path, "write_bytes", cut_short)
    with pytest.raises(OSError, match="other bytes than were written"):
        catalog.refresh(root)
    assert (root / layout.CATALOG).read_bytes() == before
    assert not list(root.glob(".*"))


@pytest.mark.usefixtures("another_process")
def test_damage_keeps_no_event_out_and_a_disk_that_refuses_is_named_with_one_way_out(root):
    segment = min(root.glob("live/w/000000/*.parquet"))
    content = segment.read_bytes()
    segment.write_bytes(b"no Parquet")
    with pytest.raises(LedgerError):
        catalog.refresh(root)
    catalog.refresh_sound(root)
    segment.write_bytes(content)
    lock = root / "locks" / "catalog.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    message = f"cannot replace the catalog of {root}: cannot lock {lock}: Is a directory; check its disk"
    with pytest.raises(LedgerError, match=f"^{message}$"):
        catalog.refresh_sound(root)


def test_what_is_made_of_the_code_alone_is_made_once_and_anew_where_code_or_file_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    made = []

    def kept(code, content=b"made", source=tmp_path / "code.py"):
        return catalog.kept("thing", str(source), code, lambda: made.append(content) or content)

    assert [kept("code") for _ in range(3)] == [b"made"] * 3
    assert kept("other code", b"other") == kept("other code") == b"other"
    assert made == [b"made", b"other"]
    (path,) = (tmp_path / "__pycache__").iterdir()
    for damage in (b"", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"x"):
        path.write_bytes(damage)
        assert [kept("other code", b"again") for _ in range(2)] == [b"again"] * 2
    assert made[2:] == [b"again"] * 3
    # A folder cannot be made below a file, whoever asks.
    assert kept("code", source=path / "code.py") == b"made"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path.unlink()
    assert kept("code") == b"made"
    assert not path.exists()


def test_nothing_else_opens_duckdb():
    opens = re.compile(r"\bduckdb\.connect\(")
    home = Path(__file__).parents[3]
    sources = [*home.glob("rose/**/*.py"), *home.glob("dashboard/**/*.py")]
    assert [path.name for path in sources if opens.search(path.read_text())] == ["database.py"]


def test_a_child_that_is_forked_makes_a_catalog_and_ends(tmp_path):
    catalog.refresh(layout.create(tmp_path / "parent"))
    if (child := os.fork()) == 0:
        try:
            catalog.refresh(layout.create(tmp_path / "child"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(tmp_path / "child", "SELECT count(*) FROM event") == [(0,)]


def test_another_client_sees_the_documented_views_alone_and_reads_each(root):
    with duckdb.connect(root / layout.CATALOG, read_only=True) as client:
        assert {name for (name,) in client.execute("SHOW TABLES").fetchall()} == set(catalog.VIEWS)
        counts = {view: client.execute(f"SELECT count(*) FROM {view}").fetchall() for view in catalog.VIEWS}
        assert (counts["event"], counts["lease"], counts["turn"]) == ([(1,)], [(1,)], [(0,)])
        assert client.execute("SELECT lease_id FROM internal.stored_event").fetchall() == [("l",)]
