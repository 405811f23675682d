import hashlib
import itertools
import json
import random
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.package.manifest import (
    Chunk,
    Manifest,
    Package,
    check_chain,
    check_sound,
    index_bytes,
    merge_parts,
    plan,
    read_index,
    unpack,
)
from tests.transfer.made_manifests import A, B, C, manifest, piece, with_piece


def test_round_trip_and_totals() -> None:
    original = manifest()
    assert Manifest.from_bytes(original.to_bytes()) == original
    assert (original.total_elements, original.changed_elements) == (71, 20)
    content = unpack(original.to_bytes().partition(b"\n")[2])
    assert json.loads(content)["pieces"][0]["name"] == "a"
    with pytest.raises(ValueError, match="hold more than"):
        unpack(original.to_bytes().partition(b"\n")[2], values_max=100)
    assert (original.dense_bytes, original.blob_bytes) == (2 * 64 + 4 * 7, 190)
    assert [(info.name, info.elements) for info in original.tensors] == [("a", 32), ("b", 32), ("c", 7)]


def test_a_receiver_wants_the_chunks_its_boxes_touch() -> None:
    both = manifest()
    left = {"a": Region((0, 0), (4, 4)), "b": Region.whole((4, 8)), "c": Region.whole((7,))}
    right = {**left, "a": Region((0, 4), (4, 8))}
    assert [chunk.sha256 for chunk in both.chunks_for(left)] == [A, C]
    assert [chunk.sha256 for chunk in both.chunks_for(right)] == [B, C]
    assert both.chunks_for({"a": Region((0, 3), (1, 5))}) == both.chunks[:2]
    assert both.chunks_for(None) == both.chunks
    assert both.chunks_for({}) == ()


def test_every_flipped_bit_is_refused() -> None:
    data = manifest().to_bytes()
    for bit in {*range(0, 8 * len(data), 13), *random.Random(0).sample(range(8 * len(data)), 500)}:
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
    with pytest.raises(TransferError):
        read_index(data)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1.0, 1e999, 10**5000, 1 << 70, "x", "\ud800", [], [[]], {}, [None], ["a", 1]]
)


def altered(data: st.DataObject, value: Any) -> Any:
    if isinstance(value, dict | list) and value and data.draw(st.integers(0, 9)):
        key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        copy: Any = value.copy()
        copy[key] = altered(data, value[key])
        return copy
    return data.draw(ODD)


def canonical(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@settings(max_examples=20)
@given(st.data())
def test_a_forged_value_is_refused_or_means_what_it_says(data: st.DataObject) -> None:
    content = json.loads(unpack(manifest().to_bytes().partition(b"\n")[2]))
    try:
        packed = zlib.compress(canonical(altered(data, content)), 6, 31)
    except (ValueError, AttributeError, TypeError):  # No JSON can be made of it.
        return
    # With a SHA-256 that fits, as somebody would forge it.
    forged = hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed
    try:
        read = Manifest.from_bytes(forged)
    except TransferError:
        return
    assert read.to_bytes() == forged
    assert len(read.weights_sha256) == 64


@given(st.data())
def test_a_forged_index_is_refused_or_means_what_it_says(data: st.DataObject) -> None:
    packages = [Package(0, None, 100), Package(1, 0, 7), Package(2, 0, 9)]
    try:
        forged = canonical(altered(data, json.loads(index_bytes(packages))))
    except (ValueError, AttributeError):
        return
    try:
        read = read_index(forged)
    except TransferError:
        return
    assert index_bytes(read) == forged
    with suppress(TransferError):
        plan(read, 2, None)


def test_parts_of_several_ranks_make_one_manifest() -> None:
    good = manifest()
    left = replace(good, encode_ns=9, chunks=(Chunk(A, 50),), pieces=good.pieces[:1])
    right = replace(good, chunks=good.chunks[1:], pieces=tuple(replace(p, chunk=p.chunk - 1) for p in good.pieces[1:]))
    assert Manifest.from_bytes(right.to_bytes(), whole=False) == right
    with pytest.raises(TransferError, match="hold 16 of its 32"):
        Manifest.from_bytes(right.to_bytes())
    assert merge_parts([left, right]) == replace(good, encode_ns=16)
    assert merge_parts([right, left]).weights_sha256 == good.weights_sha256
    with pytest.raises(TransferError, match="hold 16 of its 32"):
        merge_parts([right])
    with pytest.raises(TransferError, match="does not come after"):
        merge_parts([left, left, right])
    with pytest.raises(TransferError, match=r"different versions: \[\(3, 1\), \(3, 2\)\]"):
        merge_parts([left, replace(right, base_version=1)])


def test_a_chain_must_meet_piece_by_piece() -> None:
    first, second = manifest(3, 2), manifest(4, 3)
    second = replace(second, pieces=tuple(replace(p, base_xxh3="1" * 32) for p in second.pieces))
    check_chain([manifest(2, None), replace(first, pieces=tuple(replace(p, base_xxh3="1" * 32) for p in first.pieces))])
    check_chain([first, second])
    with pytest.raises(TransferError, match="from version 3 cannot follow version 2"):
        check_chain([manifest(2, None), second])
    wrong = replace(second, pieces=(replace(second.pieces[0], base_xxh3="9" * 32), *second.pieces[1:]))
    with pytest.raises(TransferError, match=r"\('a', \(0, 0\), .*needs base 9{32}, but 1{32} comes before"):
        check_chain([first, wrong])
    with pytest.raises(TransferError, match="differ in names, dtypes or shapes"):
        check_chain([first, replace(second, pieces=second.pieces[:-1])])
    # Cut otherwise: what can be compared here still meets.
    recut = (piece("a", (0, 0), (4, 8), base_xxh3="7" * 32), *second.pieces[2:])
    check_chain([first, replace(second, pieces=recut)])


def test_file_names_of_packages_read_back_and_others_are_none() -> None:
    for package in (Package(0, None), Package(7, 6), Package(123_456_789, 3)):
        assert Package.parse(package.stem) == package
    for stem in ("", "1-anchor", "00000001", "00000001-from-", "../00000001-anchor", "00000001-anchorx"):
        assert Package.parse(stem) is None


def test_the_index_reads_back_and_nothing_else_does() -> None:
    packages = [Package(0, None, 100), Package(1, 0, 7), Package(2, 0, 9)]
    read = read_index(index_bytes(packages))
    assert read == packages
    assert [package.blob_bytes for package in read] == [100, 7, 9]
    for wrong in (b"{}", b'{"packages":[{"version":1}]}', b'{"packages":[7]}', index_bytes(packages) + b" "):
        with pytest.raises(TransferError, match="not a list of packages"):
            read_index(wrong)
    with pytest.raises(TransferError, match="not a list of packages"):
        read_index(index_bytes([Package(-1, None)]))


def test_plan_prefers_the_fewest_bytes() -> None:
    packages = [Package(0, None, 100), *(Package(v, v - 1, 10) for v in range(1, 9)), Package(6, None, 100)]
    assert plan(packages, 8, 7) == [Package(8, 7)]
    assert plan(packages, 4, 1) == [Package(2, 1), Package(3, 2), Package(4, 3)]
    assert plan(packages, 8, None) == [Package(6, None), Package(7, 6), Package(8, 7)]
    assert plan([*packages, Package(5, 1, 15)], 5, 1) == [Package(5, 1)]
    costly = [Package(v, v - 1, 90) for v in range(1, 4)] + [Package(3, None, 100)]
    assert plan(costly, 3, 1) == [Package(3, None)]


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


WRONG: dict[str, tuple[Callable[[], Manifest], str]] = {
    "chunk too long": (lambda: with_piece(3, length=39), "pieces fill 79 bytes of a chunk of 80"),
    "no length": (lambda: with_piece(0, length=0), "is at byte 0, not 0"),
    "no such chunk": (lambda: with_piece(3, chunk=3), "in chunk 3, not below 3"),
    "unused chunk": (lambda: replace(manifest(), chunks=(*manifest().chunks, Chunk(A, 9))), "fill 0 bytes"),
    "out of the shape": (lambda: with_piece(1, stop=(4, 9)), r"reaches to \[4, 9\], beyond its shape"),
    "backwards": (lambda: with_piece(1, start=(0, 8), stop=(4, 4)), "expected 0 <= start <= stop"),
    "hole in a tensor": (lambda: with_piece(1, start=(0, 5), changed=2), "hold 28 of its 32"),
    "overlap in a tensor": (lambda: with_piece(1, start=(0, 3)), "or overlap"),
    "a piece twice": (lambda: with_piece(1, start=(0, 0), stop=(4, 4)), "does not come after"),
    "out of order": (lambda: with_piece(2, name="d"), "does not come after"),
    "two dtypes": (lambda: with_piece(1, dtype="float16"), "hold 16 of its 32"),
    "dtype": (lambda: with_piece(2, dtype="int8"), "'int8', which is not known"),
    "encoding": (lambda: with_piece(2, encoding="zip"), "Invalid enum value 'zip'"),
    "more changed than there are": (lambda: with_piece(2, changed=33), "33 of 32 elements changed"),
    "base of an anchor": (lambda: replace(manifest(), base_version=None), "disagree on the base"),
    "no base in a delta": (lambda: with_piece(2, base_xxh3=None), "disagree on the base"),
    "base after version": (lambda: replace(manifest(), base_version=3), "not newer than its base 3"),
    "hash": (lambda: with_piece(2, result_xxh3="1" * 31), r"Expected `str` matching regex .*result_xxh3"),
    "chunk hash": (
        lambda: replace(manifest(), chunks=(Chunk("../x", 50), *manifest().chunks[1:])),
        r"Expected `str` matching regex .*sha256",
    ),
    "bool": (lambda: with_piece(0, chunk=False), "Expected `int`, got `bool`"),
    "nothing": (lambda: replace(manifest(), pieces=(), chunks=()), "no pieces"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_contradicts_itself_is_refused_though_its_sha256_is_right(fault: str) -> None:
    make, message = WRONG[fault]
    with pytest.raises(TransferError, match=message):
        Manifest.from_bytes(make().to_bytes())


@pytest.mark.parametrize("offset", [39, 41])
def test_pieces_lie_one_after_the_other(offset: int) -> None:
    with pytest.raises(TransferError, match=rf"\('c', \(0,\), \(7,\)\) is at byte {offset}, not 40"):
        check_sound(with_piece(3, offset=offset), whole=True)
