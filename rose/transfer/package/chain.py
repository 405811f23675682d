"""Applies a chain of packages to one box of a tensor."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rose.transfer.codec import codec
from rose.transfer.codec.bits import digest
from rose.transfer.codec.header import Bits, Buffer
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.package.manifest import PieceEntry
from rose.transfer.turns import Turn, at_once

Blobs = Callable[[int, PieceEntry], Buffer]  # The encoded bytes of a piece of the package at an index.


def follow(
    box: Region, bits: Bits, links: Sequence[Sequence[PieceEntry]], blobs: Blobs, new: Bits, turn: Turn = at_once
) -> Bits:
    """Apply packages in order to `bits`, the elements in `box`. `links` has the pieces of each package, and `blobs`
    returns their encoded bytes. The result is written to `new` and returned. Raises TransferError."""
    if not any(piece.encoding == "dense" and piece.base_xxh3 is not None for pieces in links for piece in pieces):
        with suppress(TransferError):
            return _walk(box, bits, links, blobs, new, turn, every=False)
    return _walk(box, bits, links, blobs, new, turn, every=True)


def _walk(
    box: Region, bits: Bits, links: Sequence[Sequence[PieceEntry]], blobs: Blobs, new: Bits, turn: Turn, *, every: bool
) -> Bits:
    known: dict[object, str] = {}
    for index, pieces in enumerate(links):
        for piece in pieces:
            if piece.elements:
                place: Any = (*piece.region.within(box).slices, ...)  # The ellipsis makes a scalar an array too.
                target = new[place]
                with turn():
                    # `ascontiguousarray` would add an axis to a scalar.
                    old = np.asarray((new if index else bits)[place], order="C")
                if every and piece.base_xxh3 is not None and known.get(piece.key) != piece.base_xxh3:
                    _check_base(piece, old, turn)
                out = old if index or not target.flags.c_contiguous else target
                _decode(piece, old, blobs(index, piece), out, turn, checked=every or index == len(links) - 1)
                if not target.flags.c_contiguous:
                    with turn():
                        target[...] = out
        known = {piece.key: piece.result_xxh3 for piece in pieces}
    return new


def inside(name: str, box: Region, pieces: Iterable[PieceEntry]) -> list[PieceEntry]:
    """Return the pieces inside `box`. Raises TransferError if they do not fill the box."""
    contained = [piece for piece in pieces if box.contains(piece.region)]
    if (covered := sum(piece.elements for piece in contained)) != box.elements:
        raise TransferError(
            f"tensor {name!r} is not cut at the edges of {box}: whole pieces hold {covered} of its {box.elements} "
            "elements; publish for a multiple of the receiver's tensor-parallel size"
        )
    return contained


def reach(box: Region, links: Sequence[Iterable[PieceEntry]]) -> Region:
    wider = box
    for pieces in links:
        for piece in pieces:
            if wider.intersect(piece.region):
                wider = Region(tuple(map(min, wider.start, piece.start)), tuple(map(max, wider.stop, piece.stop)))
    return box if wider == box else reach(wider, links)


def _check_base(piece: PieceEntry, old: Bits, turn: Turn) -> None:
    if (actual := digest(old, turn)) != piece.base_xxh3:
        raise TransferError(f"{_where(piece)} has hash {actual}, expected base {piece.base_xxh3}: fetch from an anchor")


def _decode(piece: PieceEntry, old: Bits, blob: Buffer, out: Bits, turn: Turn, *, checked: bool) -> None:
    try:
        codec.decode(old, blob, out, turn)
    except TransferError as error:
        raise TransferError(f"{_where(piece)}: {error}")
    if checked and (actual := digest(out, turn)) != piece.result_xxh3:
        raise TransferError(f"{_where(piece)} decodes to {actual}, expected {piece.result_xxh3}; fetch it again")


def _where(piece: PieceEntry) -> str:
    return f"tensor {piece.name!r} at {list(piece.start)}"
