"""From a trainer's tensors to the engine's over a link: publish, fetch and verify, decode, apply, in seconds.

Real HTTP on loopback, to a server in a process of its own. The link is the receiver's own limit of bytes a second, the
same for all ways: unused time of 50 ms at most may be made up for, and round trips take no time.

All ways do the same around what they encode (`PlainStore`): they hash each tensor and encode it; decode it again,
compare, and keep that copy; bring chunks and manifest to disk; plan and pin the way, fetch manifest and chunks, and
check their SHA-256; decode into second buffers, which are kept, and hash those; point the engine to them, as one on the
CPU is. XOR sends the XOR with the version before, compressed, and the dense copy the tensors. It ends for the publisher
when the version is visible. Ours makes composite deltas and anchors after that, which the others have not, and which is
not counted (`after_s`).

The phases follow one another, as on two hosts that have all cores each; a total is their sum. Fetching is done at each
link, the rest once.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from benchmarks.transfer import made_up
from benchmarks.transfer.child import served
from benchmarks.transfer.scope import ORDINARY_SHARES, Scope
from benchmarks.transfer.ways import DENSE, XOR, Way
from rose.accept.report import Report
from rose.runtime.transfer.apply.apply import Prepared, prepare
from rose.runtime.transfer.codec.bits import digest, from_bits
from rose.runtime.transfer.codec.header import Bits, Buffer
from rose.runtime.transfer.package.manifest import Manifest, PieceEntry
from rose.runtime.transfer.package.staged import Staged
from rose.runtime.transfer.store.catalog import Catalog
from rose.runtime.transfer.store.chunks import ChunkBuilder, ChunkFolder
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.receiver import Receiver

Arrays = dict[str, Bits]
_EVERYBODY = frozenset({0})
LINKS = {"1 Gbit/s": 1e9 / 8, "100 Mbit/s": 1e8 / 8}
TENSORS = 16
#: Against which way, and how many times faster.
TARGETS = {XOR.name: 2.0, DENSE.name: 8.0}
OURS = "ours"
_WAYS = (OURS, *TARGETS)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Of one way: seconds of each phase, and bytes on the wire, of each round."""

    publish_s: list[float] = field(default_factory=list)
    #: What the publisher does once the version is visible; not in the total.
    after_s: list[float] = field(default_factory=list)
    fetch_s: dict[str, list[float]] = field(default_factory=lambda: {link: [] for link in LINKS})
    decode_s: list[float] = field(default_factory=list)
    apply_s: list[float] = field(default_factory=list)
    wire_bytes: list[int] = field(default_factory=list)

    def total_s(self, link: str) -> list[float]:
        """From publish to apply, of each round."""
        phases = (self.publish_s, self.fetch_s[link], self.decode_s, self.apply_s)
        return [sum(each) for each in zip(*phases, strict=True)]

    def to_json(self) -> dict[str, object]:
        """As the benchmark's detail keeps it."""
        totals = {link: [round(each, 4) for each in self.total_s(link)] for link in LINKS}
        return {**dataclasses.asdict(self), "total_s": totals}


class _Side(Protocol):
    """A trainer that publishes, and an engine that is brought to what it published."""

    def publish(self, version: int, arrays: Arrays, visible: Callable[[], None]) -> None: ...
    def decode(self, staged: Staged) -> None: ...
    def apply(self) -> None: ...
    def check(self, arrays: Arrays) -> None: ...


class _Ours:
    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._store = VersionStore(folder)
        self._engine = _tensors({name: array.copy() for name, array in arrays.items()})
        self._second = _tensors({name: np.empty_like(array) for name, array in arrays.items()})
        self._prepared: Prepared | None = None
        self._store.publish(0, _tensors(arrays))

    def publish(self, version: int, arrays: Arrays, visible: Callable[[], None]) -> None:
        self._store.publish(version, _tensors(arrays), visible=visible)

    def decode(self, staged: Staged) -> None:
        self._prepared = prepare(staged, self._engine, into=self._second)

    def apply(self) -> None:
        assert self._prepared is not None
        self._prepared.commit(self._second)
        self._engine, self._second = self._second, self._engine

    def check(self, arrays: Arrays) -> None:
        assert all(torch.equal(tensor, self._engine[name]) for name, tensor in _tensors(arrays).items())


class _Plain:
    def __init__(self, folder: Path, way: Way, arrays: Arrays) -> None:
        self._way = way
        self._store = PlainStore(folder, way, 0, arrays)
        self._engine = {name: array.copy() for name, array in arrays.items()}
        self._second = {name: np.empty_like(array) for name, array in arrays.items()}

    def publish(self, version: int, arrays: Arrays, visible: Callable[[], None]) -> None:
        self._store.publish(version, arrays)
        visible()

    def decode(self, staged: Staged) -> None:
        _prepare_plain(staged, self._way, self._engine, self._second)

    def apply(self) -> None:
        self._engine, self._second = self._second, self._engine

    def check(self, arrays: Arrays) -> None:
        assert all(np.array_equal(array, self._engine[name]) for name, array in arrays.items())


def measure(report: Report, folder: Path, scope: Scope) -> None:
    """At each share of changed elements, over each link."""
    folders = [{way: folder / f"{share}-{way}" for way in _WAYS} for share in ORDINARY_SHARES]
    detail: dict[str, object] = {}
    with served(*(each[way] for each in folders for way in _WAYS)) as urls, _staging() as staging:
        for number, share in enumerate(ORDINARY_SHARES):
            own = dict(zip(_WAYS, urls[number * len(_WAYS) :], strict=False))
            taken = _rounds(folders[number], own, staging, scope, share)
            for link in LINKS:
                for way, target in TARGETS.items():
                    faster = statistics.median(taken[way].total_s(link)) / statistics.median(taken[OURS].total_s(link))
                    what = f"publish to apply at {link}, {share:.0%} changed, against {way}"
                    report.claim(what, faster, "x", target, "higher")
            detail[f"{share:.0%}"] = {way: each.to_json() for way, each in taken.items()}
    report.detail["link"] = {
        "provenance": "simulated",
        "checkpoint_bytes": 2 * scope.link_elements,
        "rounds": scope.link_rounds,
        **detail,
    }


def _rounds(
    folders: dict[str, Path], urls: dict[str, str], staging: Path, scope: Scope, share: float
) -> dict[str, _Taken]:
    """Some versions, each brought to the engine in all ways, by way."""
    size = scope.link_elements // TENSORS
    made = {f"layers.{index:02d}.weight": made_up.versions(size, share, index) for index in range(TENSORS)}
    arrays = {name: next(each) for name, each in made.items()}
    sides: dict[str, _Side] = {
        OURS: _Ours(folders[OURS], arrays),
        **{way.name: _Plain(folders[way.name], way, arrays) for way in (XOR, DENSE)},
    }
    taken = {way: _Taken() for way in sides}
    # The first is not counted: with it the codec is loaded, and memory is touched for the first time.
    for version in range(1, scope.link_rounds + 2):
        arrays = {name: next(each) for name, each in made.items()}
        for way, url in _in_turn(urls, version):
            into = _Taken() if version == 1 else taken[way]
            _round(sides[way], url, staging / f"{share}-{way}", version, arrays, into, shaped=version > 1)
    return taken


def _round(side: _Side, url: str, staging: Path, version: int, arrays: Arrays, taken: _Taken, *, shaped: bool) -> None:
    """Bring one version to the engine, and check that it is there."""
    began_s = time.perf_counter()
    side.publish(version, arrays, lambda: _note(taken.publish_s, began_s))
    _note(taken.after_s, began_s + taken.publish_s[-1])
    staged = None
    for number, (link, bytes_per_s) in enumerate(LINKS.items()):
        if staged is not None:
            staged.remove()
        receiver = Receiver(url, None, staging / str(number), max_bytes_per_s=bytes_per_s if shaped else None)
        with _timed(taken.fetch_s[link]):
            staged = receiver.fetch(version, version - 1)
    assert staged is not None, "there are links"
    with _timed(taken.decode_s):
        side.decode(staged)
    with _timed(taken.apply_s):
        side.apply()
    side.check(arrays)
    taken.wire_bytes.append(staged.wire_bytes)
    staged.remove()


def _in_turn(urls: dict[str, str], version: int) -> list[tuple[str, str]]:
    """Another one begins in each round."""
    order = list(urls.items())
    return [*order[version % len(order) :], *order[: version % len(order)]]


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    _note(into, began_s)


def _note(into: list[float], began_s: float) -> None:
    into.append(round(time.perf_counter() - began_s, 6))


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: from_bits(array, "bfloat16") for name, array in arrays.items()}


@contextmanager
def _staging() -> Iterator[Path]:
    """In memory, where there is such a folder."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="transfer-benchmark-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


# ------------------------------------------------------------------ what others do


class PlainStore:
    """A store as others build it: each tensor encoded in one way, sent and checked by the same code as ours.

    Its packages look like a store's, so a store's server serves them and a receiver fetches them. It publishes each
    version against the one before, or whole if `way` is `DENSE`; arrays are flat and of bf16.
    """

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


def _prepare_plain(staged: Staged, way: Way, held: Arrays, into: Arrays) -> None:
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
