"""What is made of the code alone is made once, and anew where the code, or the file, is another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rose.ledger import catalog, catalog_file


class Maker:
    """Makes `content`, and counts how often."""

    def __init__(self, content: bytes = b"made") -> None:
        self.content, self.times = content, 0

    def __call__(self) -> bytes:
        self.times += 1
        return self.content


@pytest.fixture(autouse=True)
def writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may keep what it compiles."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(tmp_path / "code.py")


def _file(source: str) -> Path:
    (path,) = (Path(source).parent / "__pycache__").iterdir()
    return path


def test_it_is_made_once_for_the_same_code(source: str) -> None:
    make = Maker()
    assert [catalog_file.kept("thing", source, "code", make) for _ in range(3)] == [b"made"] * 3
    assert make.times == 1
    assert _file(source).name == "thing"


def test_other_code_replaces_it(source: str) -> None:
    catalog_file.kept("thing", source, "code", Maker())
    assert catalog_file.kept("thing", source, "other code", Maker(b"other")) == b"other"
    assert catalog_file.kept("thing", source, "other code", Maker()) == b"other"
    _file(source)


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[:-1], lambda whole: whole[:-1] + b"x"])
def test_a_damaged_one_is_made_again(source: str, damage) -> None:
    catalog_file.kept("thing", source, "code", Maker())
    path = _file(source)
    path.write_bytes(damage(path.read_bytes()))
    make = Maker()
    assert [catalog_file.kept("thing", source, "code", make) for _ in range(2)] == [b"made"] * 2
    assert make.times == 1


def test_nothing_is_kept_where_python_keeps_nothing(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert catalog_file.kept("thing", source, "code", Maker()) == b"made"
    assert not (Path(source).parent / "__pycache__").exists()


def test_a_place_that_takes_no_file_is_no_error(tmp_path: Path) -> None:
    # A folder cannot be made below a file, whoever asks.
    (tmp_path / "file").write_text("")
    assert catalog_file.kept("thing", str(tmp_path / "file" / "code.py"), "code", Maker()) == b"made"


_OPEN = """
import sys
from rose.ledger import catalog
from rose.ledger.writer import LedgerWriter
if sys.argv[2] == "keeps":
    catalog._make_template = lambda: sys.exit("it was made again")
LedgerWriter.open(sys.argv[1], "w", "r").close()
"""
_COLUMNS = """
SELECT table_name, column_name, data_type, comment
FROM duckdb_columns()
WHERE database_name = 'ledger'
ORDER BY ALL
"""


def test_a_second_process_makes_no_catalog_from_the_ground(tmp_path: Path) -> None:
    """And what it has of the kept one is the same, column by column and comment by comment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    shown = []
    for name in ("makes", "keeps"):
        subprocess.run([sys.executable, "-c", _OPEN, str(tmp_path / name), name], check=True, env=environment)
        with catalog.connect(tmp_path / name) as connection:
            shown.append(connection.execute(_COLUMNS).fetchall())
    assert shown[0] == shown[1]
    assert any(comment for *_, comment in shown[0])
