"""Encodes the pieces of a version: first against the version before it, and then what else leads to it.

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

import torch

from rose.runtime.transfer import codec
from rose.runtime.transfer.bits import digest
from rose.runtime.transfer.chunks import ChunkBuilder, ChunkFolder
from rose.runtime.transfer.codec import Bits, Changes
from rose.runtime.transfer.cuts import Cut, Key
from rose.runtime.transfer.device import Fetched, fetch
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
    #: Memory of the version before: to touch memory anew takes longer than to decode there.
    spare: dict[Key, Bits] = field(default_factory=dict)
    #: Copies on the trainer's accelerator of what lies there, to compare the next version with.
    there: dict[Key, torch.Tensor | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Base:
    xxh3: str
    bits: Bits


@dataclass(frozen=True, slots=True)
class _Blob:
    base_xxh3: str | None
    encoded: bytes
    spent_ns: int


class _Package:
    """A package in the making: its pieces come in the order in which they lie in chunks."""

    def __init__(self, version: int, base_version: int | None, chunks: ChunkFolder) -> None:
        self._version = version
        self._base_version = base_version
        self._builder = ChunkBuilder(chunks)
        self._entries: list[PieceEntry] = []
        self._spent_ns = 0

    def add(self, cut: Cut, blob: _Blob, xxh3: str) -> None:
        """Raises OSError."""
        header = codec.read_header(blob.encoded)
        chunk, offset = self._builder.add(cut.holders, blob.encoded)
        self._spent_ns += blob.spent_ns
        self._entries.append(
            PieceEntry(
                name=cut.info.name,
                dtype=cut.info.dtype,
                shape=cut.info.shape,
                start=cut.region.start,
                stop=cut.region.stop,
                chunk=chunk,
                offset=offset,
                length=len(blob.encoded),
                encoding=header.encoding,
                changed=header.changed,
                base_xxh3=blob.base_xxh3,
                result_xxh3=xxh3,
            )
        )

    def manifest(self) -> Manifest:
        """The whole of it. Raises OSError."""
        return Manifest(
            version=self._version,
            base_version=self._base_version,
            encode_ns=self._spent_ns,
            chunks=self._builder.finish(),
            pieces=tuple(sorted(self._entries, key=lambda entry: entry.key)),
        )


def encode_first(
    version: int, cuts: Sequence[Cut], held: Held | None, chunks: ChunkFolder, *, anchor: bool
) -> tuple[Manifest, Held]:
    """Encode the pieces against `held`, or whole if there is nothing before; the chunks are put, not synced.

    Every piece is decoded again and compared. What comes of that is what is held now, in memory of its own, since the
    trainer goes on changing its tensors. Of tensors on an accelerator only what changed is copied from there, unless an
    `anchor` follows: that is made of all they are. Returns the manifest of these pieces, which no file names yet, and
    what is held now; `encode_more` brings that up to date with `held`, of which nothing is changed here.

    Raises TransferError if a piece does not decode to what was encoded, OSError if a chunk cannot be written.
    """

    def encode(cut: Cut) -> tuple[Cut, Bits, _Blob]:
        last = None if held is None or anchor else Fetched(held.bits[cut.key], held.there.get(cut.key))
        fetched = fetch(cut.info.name, cut.tensor, last)
        new, now.there[cut.key] = fetched.bits, fetched.there
        now.xxh3[cut.key] = xxh3 = digest(new)
        if held is None:
            return cut, *_encoded(version, cut, xxh3, new, None)
        base = _Base(held.xxh3[cut.key], held.bits[cut.key])
        return cut, *_encoded(version, cut, xxh3, new, base, out=held.spare.pop(cut.key, None))

    now = Held(version, {cut.info.name: cut.info for cut in cuts})
    package = _Package(version, None if held is None else held.version, chunks)
    for cut, bits, blob in _in_threads(encode, _in_order(cuts)):
        now.bits[cut.key] = bits
        package.add(cut, blob, now.xxh3[cut.key])
    return package.manifest(), now


def encode_more(
    cuts: Sequence[Cut], before: Held, now: Held, chunks: ChunkFolder, *, anchor: bool, stride_max: int
) -> list[Manifest]:
    """Encode the pieces of `now` as composite deltas, and (`anchor`) whole; the chunks are put, not synced.

    Version v gets a composite against v - s for each power of two 1 < s <= `stride_max` that divides v, where the
    changes since are known. Every piece is decoded again and compared. Returns the manifests of these pieces, the
    latest base first and the anchor last, which no file names yet. Uses `before` up, from which `now` was encoded, and
    adds to the spans of `now`.

    Raises TransferError if a piece does not decode to what was encoded, OSError if a chunk cannot be written.
    """
    strides = composites([span.base_version for span in before.spans], now.version, stride_max)
    bases = [*(before.spans[index].base_version for index in strides), *([None] * anchor)]

    def encode(cut: Cut) -> tuple[Cut, Changes, list[_Blob]]:
        new, xxh3 = now.bits[cut.key], now.xxh3[cut.key]
        now.spare[cut.key] = spare = before.bits.pop(cut.key)
        changes = codec.changes(spare, new)
        blobs = []
        end = len(before.spans)
        for begin in strides:
            for span in reversed(before.spans[begin:end]):
                changes = codec.merge(span.changes[cut.key], changes)
            end = begin
            first = before.spans[begin]
            base = _Base(first.base_xxh3[cut.key], codec.undo(new, changes, spare))
            if digest(base.bits) != base.xxh3:
                raise TransferError(
                    f"tensor {cut.info.name!r}: the changes since version {first.base_version} are wrong"
                )
            # `small` would take a publisher several times as long, for the few who join.
            encoding: codec.Encoding | None = "fast" if new.size > codec.SMALL_ELEMENTS else None
            blobs.append(_encoded(now.version, cut, xxh3, new, base, encoding, base.bits)[1])
        if anchor:
            blobs.append(_encoded(now.version, cut, xxh3, new, None, out=spare)[1])
        return cut, changes, blobs

    packages = [_Package(now.version, base, chunks) for base in bases]
    first = before.spans[strides[-1]] if strides else None
    step = Span(before.version, before.xxh3) if first is None else Span(first.base_version, first.base_xxh3)
    for cut, changes, blobs in _in_threads(encode, _in_order(cuts)):
        step.changes[cut.key] = changes
        for package, blob in zip(packages, blobs, strict=True):
            package.add(cut, blob, now.xxh3[cut.key])
    older = before.spans[: strides[-1]] if strides else before.spans
    now.spans = [span for span in [*older, step] if now.version - span.base_version < stride_max]
    return [package.manifest() for package in packages]


def composites(bases: Sequence[int], version: int, stride_max: int) -> list[int]:
    """Which of the spans that begin at `bases` a composite delta to `version` begins with, the latest first."""
    found, stride = [], 2
    while stride <= stride_max and version % stride == 0:
        if version - stride in bases:
            found.append(bases.index(version - stride))
        stride *= 2
    return found


def _encoded(
    version: int,
    cut: Cut,
    xxh3: str,
    new: Bits,
    base: _Base | None,
    encoding: codec.Encoding | None = None,
    out: Bits | None = None,
) -> tuple[Bits, _Blob]:
    """What the piece decodes to, in `out` or in memory of its own, and what is sent of it."""
    started_ns = time.monotonic_ns()
    mantissa = mantissa_bits(cut.info.dtype)
    encoded = codec.encode(None if base is None else base.bits, new, encoding=encoding, mantissa_bits=mantissa)
    decoded = codec.decode(new if base is None else base.bits, encoded, out)
    if digest(decoded) != xxh3:
        raise TransferError(f"tensor {cut.info.name!r} of version {version} does not decode to what was encoded")
    return decoded, _Blob(None if base is None else base.xxh3, encoded, time.monotonic_ns() - started_ns)


def _in_order(cuts: Sequence[Cut]) -> list[Cut]:
    return sorted(cuts, key=lambda cut: (sorted(cut.holders), cut.key))


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
