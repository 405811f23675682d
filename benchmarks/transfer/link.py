"""From a trainer's tensors to the engine's over a link: publish, fetch and verify, decode, apply, in seconds.

Real HTTP on loopback, to a server in a process of its own; the link is the receiver's own limit of bytes a second. What
is compared goes through the same server, receiver and checks (`plain`). The phases follow one another, so a total is
their sum, and fetching is done at each link while the rest is done once.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from benchmarks.report import Report
from benchmarks.transfer import made_up, plain
from benchmarks.transfer.child import served
from benchmarks.transfer.plain import Arrays, PlainStore
from benchmarks.transfer.scope import ORDINARY_SHARES, Scope
from benchmarks.transfer.ways import DENSE, XOR, Way
from rose.runtime.transfer.apply import Prepared, prepare
from rose.runtime.transfer.bits import from_bits
from rose.runtime.transfer.receiver import Receiver
from rose.runtime.transfer.staged import Staged
from rose.runtime.transfer.store import VersionStore

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

    def publish(self, version: int, arrays: Arrays) -> object: ...
    def decode(self, staged: Staged) -> None: ...
    def apply(self) -> object: ...
    def check(self, arrays: Arrays) -> None: ...


class _Ours:
    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._store = VersionStore(folder)
        self._engine = _tensors({name: array.copy() for name, array in arrays.items()})
        self._prepared: Prepared | None = None
        self._store.publish(0, _tensors(arrays))

    def publish(self, version: int, arrays: Arrays) -> object:
        return self._store.publish(version, _tensors(arrays))

    def decode(self, staged: Staged) -> None:
        self._prepared = prepare(staged, self._engine)

    def apply(self) -> object:
        assert self._prepared is not None
        return self._prepared.commit()

    def check(self, arrays: Arrays) -> None:
        assert all(torch.equal(tensor, self._engine[name]) for name, tensor in _tensors(arrays).items())


class _Plain:
    def __init__(self, folder: Path, way: Way, arrays: Arrays) -> None:
        self._way = way
        self._store = PlainStore(folder, way, 0, arrays)
        self._engine = {name: array.copy() for name, array in arrays.items()}
        self._buffers: Arrays = {}

    def publish(self, version: int, arrays: Arrays) -> object:
        return self._store.publish(version, arrays)

    def decode(self, staged: Staged) -> None:
        self._buffers = plain.prepare(staged, self._way, self._engine)

    def apply(self) -> object:
        for name, buffer in self._buffers.items():
            np.copyto(self._engine[name], buffer)
        self._buffers = {}
        return None

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
    with _timed(taken.publish_s):
        side.publish(version, arrays)
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
    began = time.perf_counter()
    yield
    into.append(round(time.perf_counter() - began, 6))


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: from_bits(array, "bfloat16") for name, array in arrays.items()}


@contextmanager
def _staging() -> Iterator[Path]:
    """In memory, where there is such a folder."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="transfer-benchmark-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
