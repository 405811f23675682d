"""Prepares a staged version while the engine runs, and writes it into the engine's parameters during a pause."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from rose.transfer.apply.aside import Aside
from rose.transfer.apply.staged import Staged
from rose.transfer.codec.bits import dtype_name, from_bits, integers
from rose.transfer.codec.fingerprint import of_bits
from rose.transfer.codec.header import Bits
from rose.transfer.device import Patch
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region, Regions
from rose.transfer.package.chain import follow, inside
from rose.transfer.package.manifest import PieceEntry, TensorInfo
from rose.transfer.turns import Turn, at_once


def prepare(
    staged: Staged,
    current: Mapping[str, torch.Tensor],
    regions: Regions | None = None,
    turn: Turn = at_once,
    aside: Aside | None = None,
) -> Prepared:
    """Decode a staged version while the engine runs. `current` has the engine's tensors. `regions` has their boxes in
    the model's tensors (None: whole tensors). Each portion of work enters a `turn()`. Raises TransferError."""
    tensors = {info.name: info for info in staged.manifests[-1].tensors}
    if regions is None:
        regions = {name: Region.whole(info.shape) for name, info in tensors.items()}
    elif odd := sorted(set(regions) - set(tensors)):
        raise TransferError(f"version {staged.version} lacks tensors {odd}, for which regions are given")
    if set(regions) != set(current):
        missing, extra = sorted(set(regions) - set(current)), sorted(set(current) - set(regions))
        raise TransferError(
            f"version {staged.version} and the engine differ in tensors: the engine lacks {missing or 'none'}, "
            f"the version lacks {extra or 'none'}"
        )
    for name, region in regions.items():
        _check_layout(tensors[name], region, current[name])
    opened = cache(staged.chunk)
    links = [manifest.pieces_by_name() for manifest in staged.manifests]
    beside_engine = aside or Aside(next((tensor.device for tensor in current.values()), torch.device("cpu")))
    beside_engine.follow()
    own = threading.local()

    def room(old: Bits) -> Bits:
        if old.nbytes > getattr(own, "nbytes", -1):
            own.nbytes, own.memory = old.nbytes, np.empty(old.nbytes, np.uint8)
        memory: Bits = own.memory[: old.nbytes].view(old.dtype).reshape(old.shape)
        return memory

    def blob(index: int, piece: PieceEntry) -> memoryview:
        return opened(staged.manifests[index].chunks[piece.chunk])[piece.offset : piece.offset + piece.length]

    def one(name: str) -> tuple[Patch, int | None]:
        box, dtype, tensor = regions[name], tensors[name].dtype, current[name]
        chain = [inside(name, box, link[name]) for link in links]
        beside = at_once if tensor.is_cuda else turn  # An accelerator only copies the bits.
        with beside_engine.entered():
            old = beside_engine.read(name, tensor, turn)
            new = follow(box, old, chain, blob, room(old), beside)
            if tensor.is_contiguous():
                with beside():
                    patch = beside_engine.patch(old, new, dtype)
            else:
                patch = Patch(None, beside_engine.keep(from_bits(new, dtype)))
            return patch, of_bits(new, beside) if beside_engine.fingerprinted else None

    # This pool is for one call: on an error it joins all threads that read the file of a chunk.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rose-prepare") as pool:
        done = dict(zip(regions, pool.map(one, regions), strict=True))
    fingerprints = {name: number for name, (_, number) in done.items() if number is not None}
    return Prepared(staged, current, {name: patch for name, (patch, _) in done.items()}, fingerprints)


@dataclass(eq=False)
class Prepared:
    """A verified version, ready to write. `fingerprints` has each tensor's fingerprint; on the CPU it is empty."""

    staged: Staged
    _current: Mapping[str, torch.Tensor]
    _patches: dict[str, Patch]
    fingerprints: dict[str, int]

    @property
    def write_bytes(self) -> int:
        patches = self._patches.values()
        return sum(p.values.nbytes + (0 if p.positions is None else p.positions.nbytes) for p in patches)

    def commit(self, into: Mapping[str, torch.Tensor] | None = None, turn: Turn = at_once) -> None:
        """Write the changes into the engine's tensors, or into `into`, whose types may be wider. Call this once, while
        no forward pass runs. Raises TransferError."""
        if not self._patches:
            raise TransferError(f"version {self.staged.version} was already committed; prepare it again")
        into = self._current if into is None else into
        on_host = [name for name in self._patches if into[name].device.type == "cpu"]
        for name in self._patches.keys() - on_host:
            self._patches[name].write(into[name])
        list(_writers().map(lambda name: _write_on_host(self._patches[name], into[name], turn), on_host))
        if any(tensor.is_cuda for tensor in into.values()):
            torch.cuda.synchronize()
        self._patches = {}


def _write_on_host(patch: Patch, tensor: torch.Tensor, turn: Turn) -> None:
    """Write a patch into a tensor without torch, because on a busy host torch's threads wait for each other."""
    with turn():
        if tensor.dtype != patch.values.dtype or not tensor.is_contiguous():
            return patch.write(tensor)
        target, values = integers(tensor).numpy(), integers(patch.values).numpy()
        if patch.positions is None:
            np.copyto(target, values)
        else:
            target.reshape(-1)[patch.positions.numpy()] = values


@cache
def _writers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rose-commit")


def _check_layout(info: TensorInfo, region: Region, tensor: torch.Tensor) -> None:
    if not Region.whole(info.shape).contains(region):
        raise TransferError(f"tensor {info.name!r} has shape {list(info.shape)}, and {region} is not in it")
    actual = TensorInfo(info.name, dtype_name(info.name, tensor), tuple(tensor.shape))
    if actual != (expected := replace(info, shape=region.shape)):
        raise TransferError(f"tensor {info.name!r} of the engine is {actual}, expected {expected}")
