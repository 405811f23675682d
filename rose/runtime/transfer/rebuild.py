"""Reads pieces of a version back from a store's folder, as a restarted trainer must before it publishes the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rose.runtime.transfer.bits import digest
from rose.runtime.transfer.chain import follow, inside, reach
from rose.runtime.transfer.chunks import ChunkFolder
from rose.runtime.transfer.cuts import Key
from rose.runtime.transfer.dtypes import bits_dtype
from rose.runtime.transfer.encoder import Held
from rose.runtime.transfer.manifest import Chunk, Manifest, PieceEntry


def rebuild(manifests: Sequence[Manifest], keys: Iterable[Key], chunks: ChunkFolder) -> Held:
    """Decode the boxes `keys` of the version that a chain of packages from an anchor leads to.

    The version may have been cut otherwise. The changes that led to it are not known. Raises TransferError if a chunk
    is missing or damaged.
    """
    links = [manifest.pieces_by_name() for manifest in manifests]
    tensors = {info.name: info for info in manifests[-1].tensors}
    held = Held(manifests[-1].version, {})
    opened: dict[Chunk, memoryview] = {}

    def blob(index: int, piece: PieceEntry) -> memoryview:
        chunk = manifests[index].chunks[piece.chunk]
        if chunk not in opened:
            opened[chunk] = chunks.open(chunk)
        return opened[chunk][piece.offset : piece.offset + piece.length]

    for name, region in sorted(keys):
        held.tensors[name] = tensors[name]
        pieces = [link[name] for link in links]
        box = reach(region, pieces)
        bits = np.empty(box.shape, bits_dtype(tensors[name].dtype))
        bits = follow(box, bits, [inside(name, box, link) for link in pieces], blob)
        held.bits[name, region] = np.array(bits[region.within(box).slices], order="C")
        held.xxh3[name, region] = digest(held.bits[name, region])
    return held
