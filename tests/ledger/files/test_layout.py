import errno

import pytest

from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError, LockError


def test_a_new_and_an_empty_folder_become_ledgers_and_stay_ones(tmp_path):
    for folder in (tmp_path / "deep" / "new", tmp_path / "deep" / "new"):
        assert layout.create(folder) == layout.check(folder) == folder
    (tmp_path / "empty").mkdir()
    layout.create(tmp_path / "empty")


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(LedgerError, match=r"no ledger and contains 'thesis\.txt'"):
        layout.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(LedgerError, match="is a file"):
        layout.create(tmp_path / "thesis.txt")
    with pytest.raises(LedgerError, match=f"{tmp_path} is not a ledger"):
        layout.check(tmp_path)


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ('{"rose_ledger": 2}', "format 2 and this version of ROSE reads format 1; use the version of ROSE"),
        ("[", "damaged"),
        ("{}", "damaged"),
    ],
)
def test_a_newer_or_damaged_marker_is_refused(tmp_path, marker, says):
    layout.create(tmp_path)
    (tmp_path / layout.MARKER).write_text(marker)
    with pytest.raises(LedgerError, match=says):
        layout.create(tmp_path)


def test_a_path_that_duckdb_would_take_for_a_pattern_is_refused_and_a_name_that_does_not_do_for_a_folder(tmp_path):
    for character in "*?[],":
        with pytest.raises(LedgerError, match="as a pattern"):
            layout.create(tmp_path / f"a{character}b")
    for name in ("", "../x", "a/b", "a*", ".hidden", "a b", "é", "x" * 65):
        with pytest.raises(LedgerError, match="writer name"):
            layout.check_writer_name(name)


def test_what_was_archived_is_in_the_chain_and_not_read(tmp_path):
    root = layout.create(tmp_path / "ledger")
    for name in ("live/w/000001/", "live/w/000004/", "compacted/w/000000-000001.json", "archived/w/000002-000003.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch() if name.endswith(".json") else (root / name).mkdir()
    layout.move_file(root / "compacted/w/000000-000001.json", root / "archived/w/000000-000001.json")
    assert [part.pattern for part in layout.parts(root, "w")] == [f"live/w/000004/{layout.SEGMENT_PATTERN}"]
    assert [part.state for part in layout.chain(root, "w")] == ["archived", "archived", "live"]
    assert layout.writers(root) == ["w"]


def test_the_widest_part_of_each_epoch_is_read(tmp_path):
    root = layout.create(tmp_path / "ledger")
    for epoch in range(6):
        (root / f"live/w/{epoch:06d}").mkdir(parents=True)
    (root / "compacted/w").mkdir(parents=True)
    for span in ("000000-000001", "000002-000002", "000000-000003"):
        (root / f"compacted/w/{span}.json").touch()
    (root / "compacted/w/000004-000004.parquet").touch()  # Its manifest does not stand: it does not count yet.
    assert [part.pattern for part in layout.parts(root, "w")] == [
        "compacted/w/000000-000003.parquet",
        f"live/w/000004/{layout.SEGMENT_PATTERN}",
        f"live/w/000005/{layout.SEGMENT_PATTERN}",
    ]


def test_a_lock_that_cannot_be_written_is_named_with_the_way_out(tmp_path):
    path = layout.create(tmp_path / "ledger") / "locks" / ".closing.lock"
    path.mkdir(parents=True)
    with (
        pytest.raises(LockError, match=rf"^cannot lock {path}: Is a directory; check its disk$") as refused,
        layout.locked(path),
    ):
        pass
    # Readers go on without a lock, as they do where anything else cannot be written.
    assert isinstance(refused.value, OSError)
    assert (refused.value.errno, refused.value.filename) == (errno.EISDIR, str(path))
