"""A store as others build it: each tensor of a version encoded in one way, sent and checked by the same code as ours.

Its packages look like a store's, so a store's server serves them and a receiver fetches them; only what lies in the
chunks is another's. A version is checked by the same hashes before and after it is decoded.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.transfer.ways import DENSE, Way
from rose.runtime.transfer.bits import digest
from rose.runtime.transfer.catalog import Catalog
from rose.runtime.transfer.chunks import ChunkBuilder, ChunkFolder
from rose.runtime.transfer.codec import Bits
from rose.runtime.transfer.manifest import Manifest, PieceEntry
from rose.runtime.transfer.staged import Staged

Arrays = dict[str, Bits]
_EVERYBODY = frozenset({0})


class PlainStore:
    """Publishes each version against the one before, or whole if `way` is `DENSE`; arrays are flat and of bf16."""

    def __init__(self, folder: Path, way: Way, version: int, arrays: Arrays) -> None:
        """`version` is what every receiver has; it is not published."""
        self._way = way
        self._version = version
        self._catalog = Catalog(folder)
        self._chunks = ChunkFolder(folder / "chunks")
        self._held = {name: array.copy() for name, array in arrays.items()}
        self._xxh3 = {name: digest(array) for name, array in arrays.items()}

    def publish(self, version: int, arrays: Arrays) -> Manifest:
        """Encode and store a version; what was published is copied, since a trainer goes on changing its tensors."""
        builder, pieces = ChunkBuilder(self._chunks), []
        began_ns = time.monotonic_ns()
        for name, array in sorted(arrays.items()):
            new = array.copy()
            sent = self._way.encode(self._held[name], new)
            chunk, offset = builder.add(_EVERYBODY, sent)
            result = digest(new)
            pieces.append(self._entry(name, new, chunk, offset, len(sent), result))
            self._held[name], self._xxh3[name] = new, result
        manifest = Manifest(
            version=version,
            base_version=None if self._way is DENSE else self._version,
            encode_ns=time.monotonic_ns() - began_ns,
            chunks=builder.finish(),
            pieces=tuple(pieces),
        )
        self._catalog.add([manifest])
        self._version = version
        return manifest

    def _entry(self, name: str, new: Bits, chunk: int, offset: int, length: int, result: str) -> PieceEntry:
        dense = self._way is DENSE
        return PieceEntry(
            name=name,
            dtype="bfloat16",
            shape=new.shape,
            start=(0,),
            stop=new.shape,
            chunk=chunk,
            offset=offset,
            length=length,
            # Nothing but a receiver of ours would decode it.
            encoding="dense" if dense else "fast",
            changed=new.size,
            base_xxh3=None if dense else self._xxh3[name],
            result_xxh3=result,
        )


def prepare(staged: Staged, way: Way, held: Arrays) -> Arrays:
    """Decode a staged version into second buffers, as `apply.prepare` does it."""
    (manifest,) = staged.manifests
    buffers = {}
    for piece in manifest.pieces:
        base = held[piece.name]
        assert piece.base_xxh3 in (None, digest(base))
        sent = staged.chunk(manifest.chunks[piece.chunk])[piece.offset : piece.offset + piece.length]
        buffer = np.empty_like(base) if piece.base_xxh3 is None else base.copy()
        way.apply(buffer, sent)
        assert digest(buffer) == piece.result_xxh3
        buffers[piece.name] = buffer
    return buffers
