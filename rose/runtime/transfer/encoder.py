"""Encodes the pieces of a version against the version before it, and against earlier ones by composite deltas.

The weights before the last version are not kept. What is kept of earlier steps is which elements changed and how far
(`codec.Changes`), merged pairwise as a binary counter adds up: `undo` of the changes since an earlier version gives
that version's bits again.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from rose.runtime.transfer import codec
from rose.runtime.transfer.bits import digest, to_bits
from rose.runtime.transfer.chunks import ChunkBuilder, ChunkFolder
from rose.runtime.transfer.codec import Bits, Changes
from rose.runtime.transfer.cuts import Cut, Key
from rose.runtime.transfer.dtypes import mantissa_bits
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest, PieceEntry, TensorInfo

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True)
class Span:
    """What changed from `base_version` up to where the next span begins, or to the last version."""

    base_version: int
    base_xxh3: dict[Key, str] = field(default_factory=dict)
    changes: dict[Key, Changes] = field(default_factory=dict)


@dataclass(slots=True)
class Held:
    """The last published version, piece by piece as every receiver of it holds it, and the steps that led there."""

    version: int
    tensors: dict[str, TensorInfo]
    bits: dict[Key, Bits] = field(default_factory=dict)
    xxh3: dict[Key, str] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Blob:
    base_version: int | None
    base_xxh3: str | None
    encoded: bytes
    spent_ns: int


@dataclass(frozen=True, slots=True)
class _Encoded:
    cut: Cut
    bits: Bits
    xxh3: str
    blobs: list[_Blob]
    #: Since the base of the longest composite, or since the version before.
    changes: Changes | None


def encode_version(
    version: int, cuts: Sequence[Cut], held: Held | None, chunks: ChunkFolder, *, anchor: bool, stride_max: int
) -> tuple[list[Manifest], Held]:
    """Encode the pieces as a delta against `held`, as composite deltas, and (`anchor`) whole; the chunks are stored.

    Version v gets a composite against v - s for each power of two 1 < s <= `stride_max` that divides v, where the
    changes since are known. Every piece is decoded again and compared. Returns the manifests of these pieces, which
    no file names yet, and what is held now. Uses `held` up, also where it fails.

    Raises TransferError if a piece does not decode to what was encoded, OSError if a chunk cannot be written.
    """
    strides = [] if held is None else composites([span.base_version for span in held.spans], version, stride_max)
    bases = [] if held is None else [held.version, *(held.spans[index].base_version for index in strides)]
    builders: dict[int | None, ChunkBuilder] = {base: ChunkBuilder(chunks) for base in [*bases, *([None] * anchor)]}
    entries: dict[int | None, list[PieceEntry]] = {base: [] for base in builders}
    spent_ns = dict.fromkeys(builders, 0)
    now = Held(version, {cut.info.name: cut.info for cut in cuts})
    step = Span(bases[-1] if bases else version)
    order = sorted(cuts, key=lambda cut: (sorted(cut.holders), cut.key))
    for piece in _in_threads(lambda cut: _encode(version, cut, held, strides, anchor=anchor), order):
        key = piece.cut.key
        if held is not None and piece.changes is not None:
            source = held.spans[strides[-1]].base_xxh3 if strides else held.xxh3
            step.base_xxh3[key] = source[key]
            step.changes[key] = piece.changes
            del held.bits[key]
        now.bits[key], now.xxh3[key] = piece.bits, piece.xxh3
        for blob in piece.blobs:
            place = builders[blob.base_version].add(piece.cut.holders, blob.encoded)
            entries[blob.base_version].append(_entry(piece, blob, *place))
            spent_ns[blob.base_version] += blob.spent_ns
    if held is not None:
        older = held.spans[: strides[-1]] if strides else held.spans
        now.spans = [span for span in [*older, step] if version - span.base_version < stride_max]
    manifests = [
        Manifest(
            version=version,
            base_version=base,
            encode_ns=spent_ns[base],
            chunks=builders[base].finish(),
            pieces=tuple(sorted(entries[base], key=lambda entry: entry.key)),
        )
        for base in builders
    ]
    return manifests, now


def composites(bases: Sequence[int], version: int, stride_max: int) -> list[int]:
    """Which of the spans that begin at `bases` a composite delta to `version` begins with, the latest first."""
    found, stride = [], 2
    while stride <= stride_max and version % stride == 0:
        if version - stride in bases:
            found.append(bases.index(version - stride))
        stride *= 2
    return found


def _encode(version: int, cut: Cut, held: Held | None, strides: list[int], *, anchor: bool) -> _Encoded:
    # A copy of its own: the trainer goes on changing its tensors.
    new = to_bits(cut.info.name, cut.tensor.detach().to("cpu", copy=True))
    xxh3 = digest(new)
    blobs = []
    changes = None

    def add(base_version: int | None, base_xxh3: str | None, base: Bits | None) -> None:
        started_ns = time.monotonic_ns()
        encoded = codec.encode(base, new, mantissa_bits=mantissa_bits(cut.info.dtype))
        if digest(codec.decode(new if base is None else base, encoded)) != xxh3:
            raise TransferError(f"tensor {cut.info.name!r} of version {version} does not decode to what was encoded")
        blobs.append(_Blob(base_version, base_xxh3, encoded, time.monotonic_ns() - started_ns))

    if held is not None:
        key = cut.key
        add(held.version, held.xxh3[key], held.bits[key])
        changes = codec.changes(held.bits[key], new)
        end = len(held.spans)
        for begin in strides:
            for span in reversed(held.spans[begin:end]):
                changes = codec.merge(span.changes[key], changes)
            end = begin
            first = held.spans[begin]
            base = codec.undo(new, changes)
            if digest(base) != first.base_xxh3[key]:
                raise TransferError(
                    f"tensor {cut.info.name!r}: the changes since version {first.base_version} are wrong"
                )
            add(first.base_version, first.base_xxh3[key], base)
    if anchor:
        add(None, None, None)
    return _Encoded(cut, new, xxh3, blobs, changes)


def _entry(piece: _Encoded, blob: _Blob, chunk: int, offset: int) -> PieceEntry:
    info, region = piece.cut.info, piece.cut.region
    header = codec.read_header(blob.encoded)
    return PieceEntry(
        name=info.name,
        dtype=info.dtype,
        shape=info.shape,
        start=region.start,
        stop=region.stop,
        chunk=chunk,
        offset=offset,
        length=len(blob.encoded),
        encoding=header.encoding,
        changed=header.changed,
        base_xxh3=blob.base_xxh3,
        result_xxh3=piece.xxh3,
    )


def _in_threads(act: Callable[[_T], _R], jobs: Iterable[_T]) -> Iterator[_R]:
    """Results in the order of the jobs; only a few are under way or wait to be taken, since each is large."""
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads, thread_name_prefix="rose-encode") as pool:
        waiting: deque[Future[_R]] = deque()
        for job in jobs:
            waiting.append(pool.submit(act, job))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
