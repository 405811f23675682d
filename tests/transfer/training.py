"""A small model in training, and receivers that join from a store's folder: what tests of the store have in common."""

import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from rose.transfer.apply.apply import prepare
from rose.transfer.apply.staged import Staged
from rose.transfer.layout.regions import Region
from rose.transfer.package.manifest import Package, plan
from rose.transfer.store.store import VersionStore

Weights = dict[str, torch.Tensor]


def weights(version: int, rows: int = 24) -> Weights:
    """Return a version's weights; about one element in thirty changes from one version to the next."""
    bits = np.random.default_rng(0).integers(0, 2**15, (rows, 16), dtype=np.int16)
    steps = np.zeros_like(bits)
    for earlier in range(1, version + 1):
        rng = np.random.default_rng(earlier)
        steps += (rng.random(bits.shape) < 0.03) * rng.integers(-1, 2, bits.shape, dtype=np.int16)
    changed = torch.from_numpy(bits + steps)
    return {
        "eighth": changed[:4].to(torch.int8).view(torch.float8_e4m3fn),
        "embed": changed[:16].clone().view(torch.bfloat16),
        "norm": changed[16:, :4].to(torch.float32) * 1e-3,
        "head": changed[20:].clone().view(torch.float16),
        "none": torch.empty(0, 4, dtype=torch.float16),
    }


def same(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name].view(torch.uint8), right[name].view(torch.uint8)) for name in right
    )


def stage(
    store: VersionStore, packages: Sequence[Package], folder: Path, regions: dict[str, Region] | None = None
) -> Staged:
    """Stage these packages by hard links instead of a transfer."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "chunks").mkdir(parents=True)
    for index, package in enumerate(packages):
        (folder / f"{index:02d}.json").hardlink_to(store.folder / f"{package.stem}.json")
        for chunk in store.manifest(package).chunks_for(regions):
            link = folder / "chunks" / chunk.sha256
            if not link.exists():
                link.hardlink_to(store.folder / "chunks" / chunk.sha256[:2] / chunk.sha256)
    return Staged.open(folder, regions)


def join(store: VersionStore, version: int, have: int | None, folder: Path) -> Weights:
    """Return what an engine at version `have` of `weights` (None: that holds anything) gets for `version`."""
    staged = stage(store, plan(store.packages(), version, have), folder)
    engine = {name: tensor.clone() for name, tensor in weights(have or 0).items()}
    prepare(staged, engine).commit()
    return engine


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """As on a full disk, the kernel refuses to write more than so much of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def chunks_of(store: VersionStore) -> set[str]:
    return {chunk.sha256 for package in store.packages() for chunk in store.manifest(package).chunks}


def chunks_in(store: VersionStore) -> set[str]:
    return {path.name for path in store.folder.glob("chunks/??/*")}


class Clock:
    """Seconds since the Unix epoch, as the test says."""

    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s
