"""Follows one box of a tensor through a chain of packages, from the bits it has to those of the last package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rose.runtime.transfer import codec
from rose.runtime.transfer.bits import digest
from rose.runtime.transfer.codec import Bits, Buffer
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import PieceEntry
from rose.runtime.transfer.regions import Region

#: Where the encoded bytes of a piece of the package at an index are.
Blobs = Callable[[int, PieceEntry], Buffer]


def follow(box: Region, bits: Bits, links: Sequence[Sequence[PieceEntry]], blobs: Blobs) -> Bits:
    """What `bits`, the elements in `box`, become by the packages of `links`, in a buffer of its own.

    Each link is a package's pieces inside of the box (`inside`). What is decoded from is hashed first, and the result
    after. Raises TransferError if either is not what the package says.
    """
    known: dict[object, str] = {}
    for index, pieces in enumerate(links):
        new = np.empty_like(bits)
        for piece in pieces:
            if piece.elements:
                place = piece.region.within(box).slices
                # Not ascontiguousarray, which makes an axis for a scalar.
                old = np.asarray(bits[place], order="C")
                checked = piece.base_xxh3 is None or known.get(piece.key) == piece.base_xxh3
                # With the dots a scalar's place is an array too.
                whole: Any = (*place, ...)
                target = new[whole]
                out = target if target.flags.c_contiguous else np.empty_like(old)
                _decode(piece, old, blobs(index, piece), out, checked=checked)
                if out is not target:
                    target[...] = out
        known = {piece.key: piece.result_xxh3 for piece in pieces}
        bits = new
    return bits


def inside(name: str, box: Region, pieces: Iterable[PieceEntry]) -> list[PieceEntry]:
    """A tensor's pieces that make up `box`. Raises TransferError if one reaches over its edge, or some are missing."""
    found = [piece for piece in pieces if box.contains(piece.region)]
    covered = sum(piece.elements for piece in found)
    if covered != box.elements:
        raise TransferError(
            f"tensor {name!r} is not cut at the edges of {box}: whole pieces hold {covered} of its {box.elements} "
            "elements; publish for a tensor-parallel size that the receiver's divides"
        )
    return found


def reach(box: Region, links: Sequence[Iterable[PieceEntry]]) -> Region:
    """The smallest box around `box` that whole pieces of each link make up."""
    wider = box
    for pieces in links:
        for piece in pieces:
            if wider.intersect(piece.region):
                start = tuple(map(min, wider.start, piece.start))
                wider = Region(start, tuple(map(max, wider.stop, piece.stop)))
    return box if wider == box else reach(wider, links)


def _decode(piece: PieceEntry, old: Bits, blob: Buffer, out: Bits, *, checked: bool) -> None:
    where = f"tensor {piece.name!r} at {list(piece.start)}"
    if not checked and (actual := digest(old)) != piece.base_xxh3:
        raise TransferError(
            f"{where} is {actual}, expected base {piece.base_xxh3}: it is not at the version the delta starts from; "
            "fetch from an anchor instead"
        )
    try:
        codec.decode(old, blob, out)
    except TransferError as error:
        raise TransferError(f"{where}: {error}")
    if (actual := digest(out)) != piece.result_xxh3:
        raise TransferError(f"{where} decodes to {actual}, expected {piece.result_xxh3}; fetch the version again")
