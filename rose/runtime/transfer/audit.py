"""Hashes tensors as they lie in an engine, piece by piece, against the manifest of the version they should be.

They are read in blocks, so that a large tensor needs no second copy of itself, and whoever waits for the auditing
thread waits for one block at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import xxhash

from rose.runtime.transfer.bits import to_bits, torch_dtype
from rose.runtime.transfer.chain import inside
from rose.runtime.transfer.manifest import Manifest, PieceEntry
from rose.runtime.transfer.regions import Region

_BLOCK_BYTES = 16 << 20


class AuditStoppedError(Exception):
    """Somebody needs the weights, or the thread, before all was hashed: nothing was found out."""


def find_drift(
    views: Mapping[str, torch.Tensor],
    manifest: Manifest,
    regions: Mapping[str, Region] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> str | None:
    """The first piece that is not what `manifest` says, in words; None if all are.

    `views` are the engine's parameters under the published names, in the type it computes in; `regions` are the boxes
    of the whole tensors that they are (None: all of each). A value that the published type cannot hold is a finding.

    Raises AuditStoppedError once `stopped` says so, TransferError if the pieces are not cut at the regions' edges.
    """
    for name, found in manifest.pieces_by_name().items():
        box = Region.whole(found[0].shape) if regions is None else regions.get(name)
        if box is None:
            continue
        view = views.get(name)
        if view is None or tuple(view.shape) != box.shape:
            return f"tensor {name!r} of the engine is {None if view is None else list(view.shape)}, expected {box}"
        for piece in inside(name, box, found):
            actual = _digest(piece, view[piece.region.within(box).slices], stopped)
            if piece.elements and actual != piece.result_xxh3:
                return (
                    f"tensor {name!r} at {list(piece.start)} of the engine is {actual}, expected {piece.result_xxh3} "
                    f"of version {manifest.version}"
                )
    return None


def _digest(piece: PieceEntry, box: torch.Tensor, stopped: Callable[[], bool]) -> str:
    """XXH3-128 of the box in the published type, or why it has none."""
    published = torch_dtype(piece.dtype)
    hasher = xxhash.xxh3_128()
    for block in _blocks(box):
        if stopped():
            raise AuditStoppedError
        exact = block.to(published)
        if published != block.dtype and not torch.equal(exact.to(block.dtype), block):
            return f"in part no {piece.dtype}"
        hasher.update(to_bits(piece.name, exact).reshape(-1).data)
    return hasher.hexdigest()


def _blocks(box: torch.Tensor) -> Iterator[torch.Tensor]:
    """The box in C order, some rows at a time."""
    rows = box.detach().reshape(1) if box.ndim == 0 else box.detach()
    count = max(1, _BLOCK_BYTES * len(rows) // max(1, rows.numel() * rows.element_size()))
    for start in range(0, len(rows), count):
        yield rows[start : start + count]
