"""From a trainer's tensors to the engine's over a link, in seconds. All ways do the same work around their code: hash,
encode, decode and compare each tensor, write, plan, pin, fetch over real HTTP on loopback, check, decode and hash
again. ROSE writes changes in place, the others swap buffers. Composite deltas and anchors do not count."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.transfer import made_up
from benchmarks.transfer.child import served
from benchmarks.transfer.scope import ORDINARY_SHARES, Scope
from benchmarks.transfer.throttle import Throttle
from benchmarks.transfer.ways import DENSE, XOR, Way, in_threads
from rose.accept.report import Report
from rose.transfer.apply.apply import Prepared, prepare
from rose.transfer.apply.staged import Staged
from rose.transfer.codec.bits import digest, from_bits
from rose.transfer.codec.header import Bits, Buffer
from rose.transfer.package.manifest import Manifest, PieceEntry
from rose.transfer.store.catalog import Catalog
from rose.transfer.store.chunks import ChunkBuilder, ChunkFolder
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.receiver import Receiver

Arrays = dict[str, Bits]
_Taken = dict[str, list[float]]  #: One way's values by phase, one a round: seconds, and `wire_bytes`.
LINKS = {"1 Gbit/s": 1e9 / 8, "100 Mbit/s": 1e8 / 8}
TENSORS = 16
TARGETS = {XOR.name: 2.0, DENSE.name: 8.0}  #: Ratio of speeds, by the other way.
OURS = "ours"
_WAYS = (OURS, *TARGETS)


class _Ours:
    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._store = VersionStore(folder)
        self._engine = _tensors({name: array.copy() for name, array in arrays.items()})
        self._prepared: Prepared | None = None
        self._store.publish(0, _tensors(arrays))

    def publish(self, version: int, arrays: Arrays, visible: Callable[[], None]) -> None:
        self._store.publish(version, _tensors(arrays), visible=visible)

    def decode(self, staged: Staged) -> None:
        self._prepared = prepare(staged, self._engine)

    def apply(self) -> None:
        assert self._prepared is not None
        self._prepared.commit()

    def check(self, arrays: Arrays) -> None:
        assert all(torch.equal(tensor, self._engine[name]) for name, tensor in _tensors(arrays).items())


class _Plain:
    """A store and an engine as others build them: each version against the one before, or whole if `way` is `DENSE`."""

    def __init__(self, folder: Path, way: Way, arrays: Arrays) -> None:
        self._way, self._version = way, 0
        self._catalog, self._chunks = Catalog(folder), ChunkFolder(folder / "chunks")
        self._published = {name: array.copy() for name, array in arrays.items()}
        self._xxh3 = {name: digest(array) for name, array in arrays.items()}
        self._engine = {name: array.copy() for name, array in arrays.items()}
        self._second = {name: np.empty_like(array) for name, array in arrays.items()}

    def publish(self, version: int, arrays: Arrays, visible: Callable[[], None]) -> None:
        def encode(name: str) -> tuple[bytes, str]:
            result, before = digest(arrays[name]), self._published[name]
            sent = self._way.encode(before, arrays[name])
            self._decode(before, sent, result, before)
            return sent, result

        builder, pieces, dense = ChunkBuilder(self._chunks), [], self._way is DENSE
        names = sorted(arrays)
        for name, (sent, result) in zip(names, in_threads(encode, names, "tensors"), strict=True):
            chunk, offset = builder.add(frozenset({0}), sent)
            pieces.append(
                PieceEntry(
                    name=name,
                    dtype="bfloat16",
                    shape=arrays[name].shape,
                    start=(0,),
                    stop=arrays[name].shape,
                    chunk=chunk,
                    offset=offset,
                    length=len(sent),
                    encoding="dense" if dense else "fast",  # Only a receiver of ours would decode it.
                    changed=arrays[name].size,
                    base_xxh3=None if dense else self._xxh3[name],
                    result_xxh3=result,
                )
            )
            self._xxh3[name] = result
        base = None if dense else self._version
        chunks = builder.finish()
        self._chunks.sync()
        manifest = Manifest(version=version, base_version=base, encode_ns=0, chunks=chunks, pieces=tuple(pieces))
        self._catalog.add([manifest])
        self._version = version
        visible()

    def decode(self, staged: Staged) -> None:
        (manifest,) = staged.manifests

        def one(piece: PieceEntry) -> None:
            sent = staged.chunk(manifest.chunks[piece.chunk])[piece.offset : piece.offset + piece.length]
            self._decode(self._engine[piece.name], sent, piece.result_xxh3, self._second[piece.name])

        in_threads(one, manifest.pieces, "tensors")

    def apply(self) -> None:
        self._engine, self._second = self._second, self._engine

    def check(self, arrays: Arrays) -> None:
        assert all(np.array_equal(array, self._engine[name]) for name, array in arrays.items())

    def _decode(self, base: Bits, sent: Buffer, result: str, out: Bits) -> None:
        """Decode into `out`, and check it against the published version."""
        if self._way is not DENSE and out is not base:
            np.copyto(out, base)
        self._way.apply(out, sent)
        assert digest(out) == result


_Side = _Ours | _Plain


def measure(report: Report, folder: Path, scope: Scope) -> None:
    folders = [{way: folder / f"{share}-{way}" for way in _WAYS} for share in ORDINARY_SHARES]
    detail: dict[str, object] = {}
    memory = Path("/dev/shm")
    with (
        served(*(by_way[way] for by_way in folders for way in _WAYS)) as urls,
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as staging,
    ):
        for number, share in enumerate(ORDINARY_SHARES):
            own = dict(zip(_WAYS, urls[number * len(_WAYS) :], strict=False))
            taken = _rounds(folders[number], own, Path(staging), scope, share)
            for link in LINKS:
                totals = {way: statistics.median(_totals_s(times, link)) for way, times in taken.items()}
                for way, target in TARGETS.items():
                    what = f"publish to apply at {link}, {share:.0%} changed, against {way}"
                    report.claim(what, totals[way] / totals[OURS], "x", target, "higher")
            detail[f"{share:.0%}"] = taken
    amount = {"checkpoint_bytes": 2 * scope.link_elements, "rounds": scope.link_rounds}
    report.detail["link"] = {"provenance": "simulated", **amount, **detail}


def _totals_s(taken: _Taken, link: str) -> list[float]:
    return [sum(phases) for phases in zip(*(taken[name] for name in ("publish", link, "decode", "apply")), strict=True)]


def _rounds(
    folders: dict[str, Path], urls: dict[str, str], staging: Path, scope: Scope, share: float
) -> dict[str, _Taken]:
    size = scope.link_elements // TENSORS
    versions = {f"layers.{index:02d}.weight": made_up.versions(size, share, index) for index in range(TENSORS)}
    arrays = {name: next(stream) for name, stream in versions.items()}
    sides: dict[str, _Side] = {OURS: _Ours(folders[OURS], arrays)}
    sides |= {way.name: _Plain(folders[way.name], way, arrays) for way in (XOR, DENSE)}
    taken: dict[str, _Taken] = {way: {} for way in sides}
    # The first round does not count: it loads the codec, and touches memory for the first time.
    for version in range(1, scope.link_rounds + 2):
        arrays = {name: next(stream) for name, stream in versions.items()}
        order = list(urls.items())
        turn = version % len(order)
        for way, url in (*order[turn:], *order[:turn]):
            into: _Taken = {} if version == 1 else taken[way]
            _round(sides[way], url, staging / f"{share}-{way}", version, arrays, into, shaped=version > 1)
    return taken


def _round(
    side: _Ours | _Plain, url: str, staging: Path, version: int, arrays: Arrays, taken: _Taken, *, shaped: bool
) -> None:
    began_s = time.perf_counter()
    side.publish(version, arrays, lambda: _note(taken, "publish", began_s))
    _note(taken, "after", began_s + taken["publish"][-1])
    staged = None
    for number, (link, bytes_per_s) in enumerate(LINKS.items()):
        if staged is not None:
            staged.remove()
        pace = Throttle(bytes_per_s if shaped else math.inf).wait
        receiver = Receiver(url, None, staging / str(number), pace=pace)
        with _timed(taken, link):
            staged = receiver.fetch(version, version - 1)
    assert staged is not None, "there are links"
    with _timed(taken, "decode"):
        side.decode(staged)
    with _timed(taken, "apply"):
        side.apply()
    side.check(arrays)
    taken.setdefault("wire_bytes", []).append(staged.wire_bytes)
    staged.remove()


@contextmanager
def _timed(taken: _Taken, phase: str) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    _note(taken, phase, began_s)


def _note(taken: _Taken, phase: str, began_s: float) -> None:
    taken.setdefault(phase, []).append(round(time.perf_counter() - began_s, 6))


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: from_bits(array, "bfloat16") for name, array in arrays.items()}
