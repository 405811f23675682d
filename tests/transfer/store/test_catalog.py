from dataclasses import replace
from pathlib import Path

import pytest

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Chunk, Manifest, Package, read_index
from rose.transfer.store.catalog import Catalog
from tests.transfer.made_manifests import piece
from tests.transfer.training import file_size_limit


def manifest(version: int, base: int | None, digit: str = "a") -> Manifest:
    only = piece("w", (0,), (4,), shape=(4,), length=9, changed=4, base_xxh3=None if base is None else "0" * 32)
    return Manifest(version=version, base_version=base, encode_ns=1, chunks=(Chunk(digit * 64, 9),), pieces=(only,))


def test_packages_appear_and_disappear(tmp_path: Path) -> None:
    catalog, reader = Catalog(tmp_path), Catalog(tmp_path)
    assert (reader.packages(), reader.latest(), reader.chunks()) == ([], None, set())
    made = [manifest(0, None), manifest(1, 0, "b"), manifest(2, 1, "c"), manifest(2, 0, "d"), manifest(2, None, "e")]
    catalog.add(made[:1])
    catalog.add(made[1:])
    assert [package.stem for package in reader.packages()] == [
        "00000000-anchor",
        "00000001-from-00000000",
        "00000002-from-00000001",
        "00000002-from-00000000",
        "00000002-anchor",
    ]
    assert read_index((tmp_path / "index.json").read_bytes()) == reader.packages()
    assert (reader.latest(), reader.packages()[1].blob_bytes) == (2, 9)
    assert reader.chunks() == {digit * 64 for digit in "abcde"}
    assert reader.manifest(Package(2, 0)) == made[3]
    assert reader.any_of(1) == made[1]
    catalog.remove([Package(0, None), Package(1, 0)])
    catalog.refresh()
    for each in (catalog, reader):
        assert [package.version for package in each.packages()] == [2, 2, 2]
        assert each.chunks() == {digit * 64 for digit in "cde"}
        with pytest.raises(TransferError, match="has no package 00000001-from-00000000"):
            each.manifest(Package(1, 0))
        with pytest.raises(TransferError, match="version 1 is not in"):
            each.any_of(1)
    assert read_index((tmp_path / "index.json").read_bytes()) == reader.packages()


def test_foreign_files_are_no_packages_and_damaged_ones_are_named(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.add([manifest(0, None)])
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / ".00000001-anchor.json.7.tmp").write_text("{")
    assert [package.version for package in catalog.packages()] == [0]
    catalog.remove([])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000-anchor.json", "index.json", "notes.json"]
    path = tmp_path / "00000001-from-00000000.json"
    path.write_bytes(replace(manifest(1, 0), encode_ns=5).to_bytes()[:-1])
    with pytest.raises(TransferError, match=r"00000001-from-00000000\.json is damaged: .* fails its own SHA-256"):
        catalog.packages()


def test_without_room_for_all_nothing_appears(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.add([manifest(0, None)])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    # Room for the manifest of the delta, which is written first, but not for the other.
    small, large = manifest(1, 0), replace(manifest(1, None), run_id="a run" * 200)
    with file_size_limit(len(small.to_bytes())), pytest.raises(OSError, match="too large"):
        catalog.add([small, large])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert catalog.latest() == 0
