from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.checks import check_sound
from rose.runtime.transfer.package.manifest import Chunk, Manifest
from tests.runtime.transfer.made_manifests import A, manifest, with_piece

WRONG: dict[str, tuple[Callable[[], Manifest], str]] = {
    "chunk too long": (lambda: with_piece(3, length=39), "pieces fill 79 bytes of a chunk of 80"),
    "no length": (lambda: with_piece(0, length=0), "lies at 0 of chunk 0"),
    "no such chunk": (lambda: with_piece(3, chunk=3), "chunk 3 of 3"),
    "unused chunk": (lambda: replace(manifest(), chunks=(*manifest().chunks, Chunk(A, 9))), "fill 0 bytes"),
    "out of the shape": (lambda: with_piece(1, stop=(4, 9)), r"reaches to \[4, 9\], out of its shape"),
    "backwards": (lambda: with_piece(1, start=(0, 8), stop=(4, 4)), "expected 0 <= start <= stop"),
    "axes": (lambda: with_piece(3, shape=(7, 1)), "different numbers of axes"),
    "hole in a tensor": (lambda: with_piece(1, start=(0, 5), changed=2), "hold 28 of its 32 elements"),
    "overlap in a tensor": (lambda: with_piece(1, start=(0, 3)), "that overlap"),
    "a piece twice": (lambda: with_piece(1, start=(0, 0), stop=(4, 4)), "does not come after"),
    "out of order": (lambda: with_piece(2, name="d"), "does not come after"),
    "two dtypes": (lambda: with_piece(1, dtype="float16"), "hold 16 of its 32 elements"),
    "two shapes": (lambda: with_piece(1, shape=(5, 8)), "hold 16 of its 32 elements"),
    "dtype": (lambda: with_piece(2, dtype="int8"), "'int8', which is not known"),
    "encoding": (lambda: with_piece(2, encoding="zip"), "Invalid enum value 'zip'"),
    "more changed than there are": (lambda: with_piece(2, changed=33), "33 of 32 elements"),
    "base of an anchor": (lambda: replace(manifest(), base_version=None), "disagree on the base"),
    "no base in a delta": (lambda: with_piece(2, base_xxh3=None), "disagree on the base"),
    "base after version": (lambda: replace(manifest(), base_version=3), "not newer than its base 3"),
    "hash": (lambda: with_piece(2, result_xxh3="1" * 31), "hashes that are none"),
    "chunk hash": (lambda: replace(manifest(), chunks=(Chunk("../x", 50), *manifest().chunks[1:])), "'../x'"),
    "float": (lambda: with_piece(0, length=50.0), "Expected `int`"),
    "bool": (lambda: with_piece(0, chunk=False), "Expected `int`, got `bool`"),
    "negative": (lambda: replace(manifest(), encode_ns=-1), "Expected `int` >= 0"),
    "name": (lambda: with_piece(0, name=5), "Expected `str`, got `int`"),
    "nothing": (lambda: replace(manifest(), pieces=(), chunks=()), "no pieces"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_contradicts_itself_is_refused_though_its_sha256_is_right(fault: str) -> None:
    make, message = WRONG[fault]
    with pytest.raises(TransferError, match=message):
        Manifest.from_bytes(make().to_bytes())


@pytest.mark.parametrize("offset", [39, 41])
def test_pieces_lie_one_after_the_other(offset: int) -> None:
    with pytest.raises(TransferError, match=rf"'c' at \[0\] lies at {offset} of chunk 2, expected 40"):
        check_sound(with_piece(3, offset=offset), whole=True)
