from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest, Package, TensorEntry, plan


def manifest(version: int = 3, base: int | None = 2) -> Manifest:
    entries = tuple(
        TensorEntry(
            name=name,
            dtype="bfloat16",
            shape=(4, 8),
            offset=offset,
            length=50,
            encoding="delta" if base is not None else "dense",
            changed=5,
            base_xxh3=None if base is None else "0" * 32,
            result_xxh3="1" * 32,
        )
        for name, offset in (("a", 0), ("b", 50))
    )
    return Manifest(
        version=version, base_version=base, blob_bytes=100, blob_sha256="2" * 64, encode_ns=7, tensors=entries
    )


def test_round_trip_and_totals() -> None:
    original = manifest()
    assert Manifest.from_bytes(original.to_bytes()) == original
    body = json.loads(original.to_bytes())
    assert (body["total_elements"], body["changed_elements"], original.dense_bytes) == (64, 10, 128)


def test_every_flipped_bit_is_refused() -> None:
    data = manifest().to_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TransferError):
            Manifest.from_bytes(bytes(damaged))


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.integers(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(TransferError):
        Manifest.from_bytes(data)


def test_weights_identity_does_not_depend_on_the_way() -> None:
    assert manifest(3, 2).weights_sha256 == manifest(3, None).weights_sha256


@pytest.mark.parametrize("package", [Package(0, None), Package(7, 6), Package(123_456_789, 3)])
def test_file_names_read_back(package: Package) -> None:
    assert Package.parse(package.stem) == package


@pytest.mark.parametrize(
    "stem", ["", "1-anchor", "00000001", "00000001-from-", "../00000001-anchor", "00000001-anchorx"]
)
def test_other_file_names_are_no_packages(stem: str) -> None:
    assert Package.parse(stem) is None


def test_plan_prefers_the_fewest_bytes() -> None:
    packages = [Package(0, None, 100), *(Package(v, v - 1, 10) for v in range(1, 9)), Package(6, None, 100)]
    assert plan(packages, 8, 7) == [Package(8, 7)]
    assert plan(packages, 4, 1) == [Package(2, 1), Package(3, 2), Package(4, 3)]
    assert plan(packages, 8, None) == [Package(6, None), Package(7, 6), Package(8, 7)]
    composite = [*packages, Package(5, 1, 15)]
    assert plan(composite, 5, 1) == [Package(5, 1)]
    costly = [Package(v, v - 1, 90) for v in range(1, 4)] + [Package(3, None, 100)]
    assert plan(costly, 3, 1) == [Package(3, None)]


@settings(max_examples=200)
@given(
    st.sets(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 8))),
    st.integers(0, 9),
    st.none() | st.integers(0, 9),
)
def test_a_plan_is_a_chain_or_an_error(ids: set[tuple[int, int | None]], version: int, have: int | None) -> None:
    packages = [Package(v, base, 1 + v) for v, base in ids if base is None or base < v]
    try:
        chain = plan(packages, version, have)
    except TransferError:
        assert not any(package.version == version and package.base_version is None for package in packages) or (
            have == version
        )
        return
    assert chain[-1].version == version
    assert chain[0].base_version in (None, have)
    assert all(after.base_version == before.version for before, after in itertools.pairwise(chain))


def test_no_way_names_what_there_is() -> None:
    with pytest.raises(TransferError, match=r"from version 1 to version 9: the store holds versions \[3\]"):
        plan([Package(3, 2)], 9, 1)
