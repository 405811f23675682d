"""Compares an engine's tensors with the hashes of their version, in portions that other threads can interrupt."""

from collections.abc import Mapping

import torch
import xxhash

from rose.transfer.codec.bits import to_bits, torch_dtype
from rose.transfer.codec.fingerprint import of_tensor
from rose.transfer.layout.regions import Region, Regions
from rose.transfer.package.chain import inside
from rose.transfer.package.manifest import Manifest, PieceEntry
from rose.transfer.turns import Turn, at_once, portions


def find_drift(
    views: Mapping[str, torch.Tensor], manifest: Manifest, regions: Regions | None = None, turn: Turn = at_once
) -> str | None:
    """Compare the engine's tensors in `views` with the hashes in `manifest`. `regions` has their boxes in the model's
    tensors (None: whole tensors). Return a message about the first difference, or None. Raises TransferError."""
    for name, entries in manifest.pieces_by_name().items():
        box = Region.whole(entries[0].shape) if regions is None else regions.get(name)
        if box is None:
            continue
        if (view := views.get(name)) is None or tuple(view.shape) != box.shape:
            return f"tensor {name!r} of the engine is {None if view is None else list(view.shape)}, expected {box}"
        for piece in inside(name, box, entries):
            actual = _digest(piece, view[piece.region.within(box).slices], turn)
            if piece.elements and actual != piece.result_xxh3:
                return (
                    f"tensor {name!r} at {list(piece.start)} of the engine is {actual}, expected {piece.result_xxh3} "
                    f"of version {manifest.version}"
                )
    return None


def fingerprints(views: Mapping[str, torch.Tensor], manifest: Manifest, turn: Turn = at_once) -> dict[str, int | None]:
    """Return each tensor's fingerprint in its published type. It is None if a value does not fit into this type."""
    types = {tensor.name: torch_dtype(tensor.dtype) for tensor in manifest.tensors}
    return {name: of_tensor(view, types[name], turn) for name, view in views.items() if name in types}


def _digest(piece: PieceEntry, box: torch.Tensor, turn: Turn) -> str:
    published = torch_dtype(piece.dtype)
    beside = at_once if box.is_cuda else turn  # An accelerator only copies the bits.
    hasher = xxhash.xxh3_128()
    for (portion,) in portions(box):
        with turn():
            exact = portion.to(published)
            if published != portion.dtype and not torch.equal(exact.to(portion.dtype), portion):
                return f"not entirely {piece.dtype}"
            bits = to_bits(piece.name, exact)
        with beside():
            hasher.update(bits.reshape(-1).data)
    return hasher.hexdigest()
