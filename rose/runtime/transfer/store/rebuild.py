"""Reads pieces of a version back from a store's folder, as a restarted trainer must before it publishes the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from rose.runtime.transfer.codec import changes
from rose.runtime.transfer.codec.bits import digest
from rose.runtime.transfer.codec.dtypes import bits_dtype
from rose.runtime.transfer.layout.cuts import Key
from rose.runtime.transfer.package.chain import follow, inside, reach
from rose.runtime.transfer.package.manifest import Chunk, Manifest, PieceEntry
from rose.runtime.transfer.store.chunks import ChunkFolder
from rose.runtime.transfer.store.encoder import Held, Span


def rebuild(manifests: Sequence[Manifest], keys: Iterable[Key], chunks: ChunkFolder) -> Held:
    """Decode the boxes `keys` of the version that a chain of packages from an anchor leads to.

    The version may have been cut otherwise. What each link of the chain changed is one of the steps that led there, so
    that composite deltas go on. Raises TransferError if a chunk is missing or damaged.
    """
    links = [manifest.pieces_by_name() for manifest in manifests]
    tensors = {info.name: info for info in manifests[-1].tensors}
    spans = [Span(before.version) for before in manifests[:-1]]
    held = Held(manifests[-1].version, {}, spans=spans)
    opened: dict[Chunk, memoryview] = {}

    def blob(link: int, _: int, piece: PieceEntry) -> memoryview:
        chunk = manifests[link].chunks[piece.chunk]
        if chunk not in opened:
            opened[chunk] = chunks.open(chunk)
        return opened[chunk][piece.offset : piece.offset + piece.length]

    for name, region in sorted(keys):
        key = name, region
        held.tensors[name] = tensors[name]
        pieces = [link[name] for link in links]
        box = reach(region, pieces)
        bits = np.empty(box.shape, bits_dtype(tensors[name].dtype))
        for index, link in enumerate(pieces):
            bits = follow(box, bits, [inside(name, box, link)], partial(blob, index))
            now = np.array(bits[region.within(box).slices], order="C")
            if index:
                spans[index - 1].base_xxh3[key] = held.xxh3[key]
                spans[index - 1].changes[key] = changes.between(held.bits[key], now)
            held.bits[key], held.xxh3[key] = now, digest(now)
    return held
