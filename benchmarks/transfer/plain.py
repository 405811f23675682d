"""A store as others build it: each tensor of a version encoded in one way, sent and checked by the same code as ours.

Its packages look like a store's, so a store's server serves them and a receiver fetches them; only what lies in the
chunks is another's. What ours does, this does: tensors in as many threads as there are cores, each decoded again by the
publisher where it keeps the version before, and hashed; chunks and manifests on disk before they are visible; the
result hashed by the receiver, and the base only if that is wrong.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.transfer.ways import DENSE, Way
from rose.runtime.transfer.codec.bits import digest
from rose.runtime.transfer.codec.header import Bits, Buffer
from rose.runtime.transfer.package.manifest import Manifest, PieceEntry
from rose.runtime.transfer.package.staged import Staged
from rose.runtime.transfer.store.catalog import Catalog
from rose.runtime.transfer.store.chunks import ChunkBuilder, ChunkFolder

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
        """Encode, check and store a version; it is visible when this returns."""
        began_ns = time.monotonic_ns()

        def one(name: str) -> tuple[bytes, str]:
            result, held = digest(arrays[name]), self._held[name]
            sent = self._way.encode(held, arrays[name])
            _decode(self._way, held, sent, result, held)
            return sent, result

        builder, pieces = ChunkBuilder(self._chunks), []
        with _threads() as pool:
            names = sorted(arrays)
            for name, (sent, result) in zip(names, pool.map(one, names), strict=True):
                chunk, offset = builder.add(_EVERYBODY, sent)
                pieces.append(self._entry(name, arrays[name], chunk, offset, len(sent), result))
                self._xxh3[name] = result
        manifest = Manifest(
            version=version,
            base_version=None if self._way is DENSE else self._version,
            encode_ns=time.monotonic_ns() - began_ns,
            chunks=builder.finish(),
            pieces=tuple(pieces),
        )
        self._chunks.sync()
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


def prepare(staged: Staged, way: Way, held: Arrays, into: Arrays) -> None:
    """Decode a staged version into second buffers, as `apply.prepare` does it."""
    (manifest,) = staged.manifests

    def one(piece: PieceEntry) -> None:
        sent = staged.chunk(manifest.chunks[piece.chunk])[piece.offset : piece.offset + piece.length]
        _decode(way, held[piece.name], sent, piece.result_xxh3, into[piece.name])

    with _threads() as pool:
        list(pool.map(one, manifest.pieces))


def _decode(way: Way, base: Bits, sent: Buffer, result: str, out: Bits) -> None:
    """The new array into `out`, and found to be what was published."""
    if way is not DENSE and out is not base:
        np.copyto(out, base)
    way.apply(out, sent)
    assert digest(out) == result


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="plain")
