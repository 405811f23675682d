"""Encodes a version against the version before, against older versions (composite deltas), and as an anchor. Memory
has the newest version, and sets of changes that lead back to the older versions. Sets of neighbouring versions are
merged as in a binary counter, so that few sets remain."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeVar

import numpy as np
import torch

from rose.transfer.codec import codec
from rose.transfer.codec.bits import digest
from rose.transfer.codec.blocks import Inverse
from rose.transfer.codec.choice import Link
from rose.transfer.codec.dtypes import bits_dtype, mantissa_bits
from rose.transfer.codec.header import Bits, read_header
from rose.transfer.device import Fetched, fetch
from rose.transfer.errors import TransferError
from rose.transfer.package.chain import follow, inside, reach
from rose.transfer.package.cuts import Cut, Key
from rose.transfer.package.manifest import Manifest, PieceEntry, TensorInfo
from rose.transfer.store.chunks import ChunkBuilder, ChunkFolder

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True)
class Span:
    """The changes from `base_version` to the next span's `base_version`. The last span leads to the newest version."""

    base_version: int
    base_xxh3: dict[Key, str] = field(default_factory=dict)
    inverse: dict[Key, list[Inverse]] = field(default_factory=dict)


@dataclass(slots=True)
class EncoderState:
    version: int
    tensors: dict[str, TensorInfo]
    bits: dict[Key, Bits] = field(default_factory=dict)
    xxh3: dict[Key, str] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    on_device: dict[Key, torch.Tensor | None] = field(default_factory=dict)  # The same as in `Fetched`.


@dataclass(frozen=True, slots=True)
class _Blob:
    base_xxh3: str | None
    encoded: bytes
    spent_ns: int


class _Package:
    def __init__(self, version: int, base_version: int | None, chunks: ChunkFolder) -> None:
        self._version, self._base_version = version, base_version
        self._builder = ChunkBuilder(chunks)
        self._entries: list[PieceEntry] = []
        self._spent_ns = 0

    def add(self, cut: Cut, blob: _Blob, xxh3: str) -> None:
        header, _ = read_header(blob.encoded)
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
        return Manifest(
            version=self._version,
            base_version=self._base_version,
            encode_ns=self._spent_ns,
            chunks=self._builder.finish(),
            pieces=tuple(sorted(self._entries, key=lambda entry: entry.key)),
        )


def encode_first(
    version: int, cuts: Sequence[Cut], previous: EncoderState | None, chunks: ChunkFolder, *, anchor: bool, link: Link
) -> tuple[Manifest, EncoderState]:
    """Encode the changes since `previous` (do not use it again), or all elements if it is None. Return the manifest,
    and the state at `version`. The chunks are not synced to disk. Raises TransferError or OSError."""
    now = EncoderState(version, {cut.info.name: cut.info for cut in cuts})
    if previous is not None:
        step = Span(previous.version, previous.xxh3)
        now.bits, now.spans = previous.bits, [*previous.spans, step]

    def encode(cut: Cut) -> tuple[Cut, _Blob]:
        bits = now.bits.get(cut.key)
        last = None if previous is None or bits is None or anchor else Fetched(bits, previous.on_device.get(cut.key))
        fetched = fetch(cut.info.name, cut.elements(), last)
        new, now.on_device[cut.key] = fetched.bits, fetched.on_device
        now.xxh3[cut.key] = digest(new)
        started_ns, mantissa = time.monotonic_ns(), mantissa_bits(cut.info.dtype)
        if bits is None:
            encoded = codec.encode(None, new, mantissa_bits=mantissa)
            now.bits[cut.key] = codec.decode(new, encoded)
        else:
            encoded, step.inverse[cut.key] = codec.advance(bits, new, mantissa_bits=mantissa, link=link)
        return cut, _checked(cut, now, encoded, None if previous is None else previous.xxh3[cut.key], started_ns)

    package = _Package(version, None if previous is None else previous.version, chunks)
    for cut, blob in _in_threads(encode, _in_order(cuts)):
        package.add(cut, blob, now.xxh3[cut.key])
    return package.manifest(), now


def encode_more(
    cuts: Sequence[Cut], now: EncoderState, chunks: ChunkFolder, *, anchor: bool, stride_max: int, link: Link
) -> list[Manifest]:
    """Encode composite deltas and, if `anchor`, an anchor. Version v gets a delta against version v - s for each s that
    divides v and is a power of two, from 2 to `stride_max`. Raises TransferError or OSError."""
    *before, step = now.spans
    strides = composites([span.base_version for span in before], now.version, stride_max)
    bases = [*(before[index].base_version for index in strides), *([None] * anchor)]
    first = before[strides[-1]] if strides else step

    def encode(cut: Cut) -> tuple[Cut, list[Inverse], list[_Blob]]:
        bits, inverse = now.bits[cut.key], step.inverse[cut.key]
        new, mantissa = bits.copy() if strides else bits, mantissa_bits(cut.info.dtype)
        blobs = []
        end = len(before)
        for begin in strides:
            codec.undo(bits, inverse)
            for span in reversed(before[begin:end]):
                codec.undo(bits, span.inverse[cut.key])
            end = begin
            started_ns = time.monotonic_ns()
            base, base_xxh3 = before[begin].base_version, before[begin].base_xxh3[cut.key]
            if digest(bits) != base_xxh3:
                raise TransferError(f"tensor {cut.info.name!r}: the changes since version {base} are wrong")
            encoded, inverse = codec.advance(bits, new, mantissa_bits=mantissa, link=link)
            blobs.append(_checked(cut, now, encoded, base_xxh3, started_ns))
        if anchor:
            started_ns = time.monotonic_ns()
            encoded = codec.encode(None, bits, mantissa_bits=mantissa)
            codec.decode(bits, encoded, bits)
            blobs.append(_checked(cut, now, encoded, None, started_ns))
        return cut, inverse, blobs

    packages = [_Package(now.version, base, chunks) for base in bases]
    merged = Span(first.base_version, first.base_xxh3)
    for cut, inverse, blobs in _in_threads(encode, _in_order(cuts)):
        merged.inverse[cut.key] = inverse
        for package, blob in zip(packages, blobs, strict=True):
            package.add(cut, blob, now.xxh3[cut.key])
    older = before[: strides[-1]] if strides else before
    now.spans = [span for span in [*older, merged] if now.version - span.base_version < stride_max]
    return [package.manifest() for package in packages]


def composites(bases: Sequence[int], version: int, stride_max: int) -> list[int]:
    indices, stride = [], 2
    while stride <= stride_max and version % stride == 0:
        if version - stride in bases:
            indices.append(bases.index(version - stride))
        stride *= 2
    return indices


def _checked(cut: Cut, now: EncoderState, encoded: bytes, base_xxh3: str | None, started_ns: int) -> _Blob:
    if digest(now.bits[cut.key]) != now.xxh3[cut.key]:
        raise TransferError(f"tensor {cut.info.name!r} of version {now.version} does not decode to what was encoded")
    return _Blob(base_xxh3, encoded, time.monotonic_ns() - started_ns)


def _in_order(cuts: Sequence[Cut]) -> list[Cut]:
    return sorted(cuts, key=lambda cut: (sorted(cut.holders), cut.key))


def _in_threads(act: Callable[[_T], _R], jobs: Iterable[_T]) -> Iterator[_R]:
    """Yield `act(job)` for each job, in order. Only a few jobs run ahead of the reader, as each result is large."""
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads, thread_name_prefix="rose-encode") as pool:
        waiting: deque[Future[_R]] = deque()
        for job in jobs:
            waiting.append(pool.submit(act, job))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def rebuild(manifests: Sequence[Manifest], keys: Iterable[Key], chunks: ChunkFolder) -> EncoderState:
    links = [manifest.pieces_by_name() for manifest in manifests]
    tensors = {info.name: info for info in manifests[-1].tensors}
    spans = [Span(before.version) for before in manifests[:-1]]
    state = EncoderState(manifests[-1].version, {}, spans=spans)
    opened = cache(chunks.open)

    def blob(link: int, _: int, piece: PieceEntry) -> memoryview:
        return opened(manifests[link].chunks[piece.chunk])[piece.offset : piece.offset + piece.length]

    for name, region in sorted(keys):
        key = name, region
        state.tensors[name] = tensors[name]
        pieces = [link[name] for link in links]
        box = reach(region, pieces)
        bits = np.empty(box.shape, bits_dtype(tensors[name].dtype))
        for index, link in enumerate(pieces):
            bits = follow(box, bits, [inside(name, box, link)], partial(blob, index), np.empty_like(bits))
            now = np.array(bits[region.within(box).slices], order="C")
            if index:
                spans[index - 1].base_xxh3[key] = state.xxh3[key]
                spans[index - 1].inverse[key] = codec.advance(state.bits[key], now)[1]
            state.bits[key], state.xxh3[key] = now, digest(now)
    return state
