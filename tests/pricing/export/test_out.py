from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from rose.pricing.export import out
from rose.pricing.money import PricingError


def make(temporary: Path) -> tuple[int, Mapping[str, int]]:
    temporary.write_bytes(b"new")
    return 1, {"bill": 7}


def test_a_file_is_written_and_described(tmp_path: Path) -> None:
    done = out.write(tmp_path / "a.csv", False, make)
    assert (tmp_path / "a.csv").read_bytes() == b"new"
    assert done.to_json() == {
        "path": str(tmp_path / "a.csv"),
        "rows": 1,
        "totals": {"bill": 7},
        "bytes": 3,
        "sha256": hashlib.sha256(b"new").hexdigest(),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"old")
    with pytest.raises(PricingError, match="--force"):
        out.write(path, False, make)
    assert path.read_bytes() == b"old"
    out.write(path, True, make)
    assert path.read_bytes() == b"new"


def test_one_that_appears_meanwhile_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"

    def slowly(temporary: Path) -> tuple[int, Mapping[str, int]]:
        path.write_bytes(b"somebody else's")
        return make(temporary)

    with pytest.raises(PricingError, match="exists"):
        out.write(path, False, slowly)
    assert path.read_bytes() == b"somebody else's"


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"old")

    def broken(temporary: Path) -> tuple[int, Mapping[str, int]]:
        temporary.write_bytes(b"half")
        raise PricingError("no")

    with pytest.raises(PricingError, match="no"):
        out.write(path, True, broken)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.csv", b"old")]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PricingError, match="there is no folder"):
        out.write(tmp_path / "none" / "a.csv", False, make)
    with pytest.raises(PricingError, match="is a folder"):
        out.write(tmp_path, True, make)


def test_the_suffix_is_the_format(tmp_path: Path) -> None:
    assert out.suffix_of(Path("a.csv"), (".parquet", ".csv"), "FOCUS") == ".csv"
    with pytest.raises(PricingError, match=r"FOCUS is written as \.csv or \.parquet"):
        out.suffix_of(Path("a.txt"), (".parquet", ".csv"), "FOCUS")
