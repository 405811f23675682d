"""Brings an engine's parameters to a staged version: everything that can fail before the pause, one copy inside it."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping

import torch

from rose.runtime.transfer import codec
from rose.runtime.transfer.bits import digest, dtype_name, from_bits, to_bits
from rose.runtime.transfer.codec import Bits
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import TensorEntry
from rose.runtime.transfer.staged import Staged


def prepare(staged: Staged, current: Mapping[str, torch.Tensor]) -> Prepared:
    """Decode a staged version into second buffers. Runs beside the engine; `current` is only read.

    `current` maps the manifest's names to the engine's parameters, or to views of them (`fused.hf_views`). Both must
    hold the same names: a version is applied whole or not at all. Each tensor's base is hashed as it lies in the
    engine, so a delta can be applied neither to a wrong base nor twice. Takes as much host memory as the weights.

    Raises TransferError naming the tensor, what was expected and what was found; nothing has been changed then.
    """
    started_ns = time.monotonic_ns()
    expected = {entry.name for entry in staged.manifests[-1].tensors}
    if expected != set(current):
        missing, extra = sorted(expected - set(current)), sorted(set(current) - expected)
        raise TransferError(
            f"version {staged.version} and the engine differ in tensors: the engine lacks {missing or 'none'}, "
            f"the version lacks {extra or 'none'}"
        )
    for entry in staged.manifests[0].tensors:
        _check_layout(entry, current[entry.name])
    blobs = [_map(staged, index) for index in range(len(staged.manifests))]
    buffers: dict[str, torch.Tensor] = {}
    # The chain was checked when staged: every manifest lists the same tensors in the same order.
    for links in zip(*(manifest.tensors for manifest in staged.manifests), strict=True):
        name = links[0].name
        bits = _chain(to_bits(name, current[name]), links, blobs)
        buffer = from_bits(bits, links[0].dtype)
        # Pinned memory copies to a GPU several times faster, and the pause is what this shortens.
        buffers[name] = buffer.pin_memory() if current[name].is_cuda else buffer
    return Prepared(staged, current, buffers, time.monotonic_ns() - started_ns)


class Prepared:
    """A version decoded and verified, ready to be copied in. `stage_ns` is what that took."""

    def __init__(
        self, staged: Staged, current: Mapping[str, torch.Tensor], buffers: dict[str, torch.Tensor], stage_ns: int
    ) -> None:
        self.staged = staged
        self.version = staged.version
        self.stage_ns = stage_ns
        self._current = current
        self._buffers = buffers

    def commit(self) -> int:
        """Copy the version into the parameters in place, and return how long that took, in nanoseconds.

        Call it where the engine runs no forward pass. Every tensor is written, so the result is this version
        whatever the parameters held by now. The second buffers are given up: it can be called once.
        """
        if not self._buffers:
            raise TransferError(f"version {self.version} was already committed; prepare it again")
        started_ns = time.monotonic_ns()
        on_gpu = False
        for name, buffer in self._buffers.items():
            self._current[name].data.copy_(buffer, non_blocking=True)
            on_gpu = on_gpu or self._current[name].is_cuda
        if on_gpu:
            torch.cuda.synchronize()
        pause_ns = time.monotonic_ns() - started_ns
        self._buffers = {}
        return pause_ns

    def verify(self) -> str:
        """Hash the engine's parameters, after `commit` and outside the pause; returns the version's `weights_sha256`.

        Raises TransferError naming the first tensor that is not what the version says.
        """
        manifest = self.staged.manifests[-1]
        for entry in manifest.tensors:
            actual = digest(to_bits(entry.name, self._current[entry.name]))
            if actual != entry.result_xxh3:
                raise TransferError(
                    f"tensor {entry.name!r} of the engine is {actual}, expected {entry.result_xxh3} of "
                    f"version {self.version}"
                )
        return manifest.weights_sha256


def _check_layout(entry: TensorEntry, tensor: torch.Tensor) -> None:
    actual = (dtype_name(entry.name, tensor), tuple(tensor.shape))
    if actual != (entry.dtype, entry.shape):
        raise TransferError(
            f"tensor {entry.name!r} of the engine is {actual[0]}{list(actual[1])}, "
            f"expected {entry.dtype}{list(entry.shape)}"
        )


def _chain(bits: Bits, links: tuple[TensorEntry, ...], blobs: list[memoryview]) -> Bits:
    """Follow one tensor through all packages, from the engine's bits to the staged version's."""
    if links[0].base_xxh3 is not None and (actual := digest(bits)) != links[0].base_xxh3:
        raise TransferError(
            f"tensor {links[0].name!r} of the engine is {actual}, expected base {links[0].base_xxh3}: "
            "it is not at the version the delta starts from; fetch from an anchor instead"
        )
    for entry, blob in zip(links, blobs, strict=True):
        try:
            bits = codec.decode(bits, blob[entry.offset : entry.offset + entry.length])
        except TransferError as error:
            raise TransferError(f"tensor {entry.name!r}: {error}")
        if (actual := digest(bits)) != entry.result_xxh3:
            raise TransferError(f"tensor {entry.name!r} decodes to {actual}, expected {entry.result_xxh3}")
    return bits


def _map(staged: Staged, index: int) -> memoryview:
    path = staged.blob_path(index)
    expected = staged.manifests[index].blob_bytes
    try:
        with path.open("rb") as file:
            blob = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped.
        raise TransferError(f"staged blob {path} cannot be read ({error}); fetch version {staged.version} again")
    if len(blob) != expected:
        raise TransferError(f"staged blob {path} is {len(blob)} bytes, expected {expected}")
    return blob
