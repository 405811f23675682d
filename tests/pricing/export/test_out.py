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
    done = out.write(tmp_path / "a.csv", make)
    assert (tmp_path / "a.csv").read_bytes() == b"new"
    content = {"bytes": 3, "sha256": hashlib.sha256(b"new").hexdigest()}
    assert done.to_json() == {"path": str(tmp_path / "a.csv"), "rows": 1, "totals": {"bill": 7}, **content}
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_file_that_is_there_or_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"

    def slowly(temporary: Path) -> tuple[int, Mapping[str, int]]:
        path.write_bytes(b"somebody else's")
        return make(temporary)

    for _ in range(2):
        with pytest.raises(PricingError, match="exists"):
            out.write(path, slowly)
        assert path.read_bytes() == b"somebody else's"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def broken(temporary: Path) -> tuple[int, Mapping[str, int]]:
        temporary.write_bytes(b"half")
        raise PricingError("no")

    with pytest.raises(PricingError, match="no"):
        out.write(tmp_path / "a.csv", broken)
    assert list(tmp_path.iterdir()) == []


def test_a_place_or_name_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for path, says in (
        (tmp_path / "none" / "a.csv", "does not exist; create it"),
        (tmp_path, "must end in"),
        (tmp_path / "a.txt", r"must end in \.csv or \.parquet"),
    ):
        with pytest.raises(PricingError, match=says):
            out.check(path, (".parquet", ".csv"))
