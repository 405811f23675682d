"""What a manifest must be beyond its form: its pieces fill chunks and tensors."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, get_args

from rose.runtime.transfer.codec.dtypes import is_dtype
from rose.runtime.transfer.codec.header import Encoding
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.layout.regions import Region, overlapping

if TYPE_CHECKING:
    from rose.runtime.transfer.package.manifest import Manifest, PieceEntry, TensorInfo

_SHA256 = re.compile(r"[0-9a-f]{64}")
_XXH3 = re.compile(r"[0-9a-f]{32}")


def check_sound(manifest: Manifest, *, whole: bool) -> None:
    """Raise TransferError unless pieces fill the chunks, lie inside their tensors, and (`whole`) make them up."""
    if whole and not manifest.pieces:
        raise TransferError(f"manifest of version {manifest.version} has no pieces")
    if manifest.base_version is not None and manifest.base_version >= manifest.version:
        raise TransferError(f"manifest: version {manifest.version} is not newer than its base {manifest.base_version}")
    for before, after in itertools.pairwise(manifest.pieces):
        if before.key >= after.key:
            raise TransferError(f"manifest: piece {after.key} does not come after {before.key}")
    for piece in manifest.pieces:
        _check_piece(manifest, piece)
    _check_chunks(manifest)
    for info, group in itertools.groupby(manifest.pieces, key=lambda piece: piece.tensor):
        _check_cover(info, [piece.region for piece in group], whole=whole)
    if len({info.name for info in manifest.tensors}) != len(manifest.tensors):
        raise TransferError(f"manifest of version {manifest.version} gives a tensor two dtypes or shapes")


def _check_piece(manifest: Manifest, piece: PieceEntry) -> None:
    where = f"manifest: tensor {piece.name!r} at {list(piece.start)}"
    if not is_dtype(piece.dtype):
        raise TransferError(f"{where} has dtype {piece.dtype!r}, which is not known")
    if not Region.whole(piece.shape).contains(piece.region):
        raise TransferError(f"{where} reaches to {list(piece.stop)}, out of its shape {list(piece.shape)}")
    dense_only = piece.base_xxh3 is None
    if dense_only != (manifest.base_version is None) or (dense_only and piece.encoding != "dense"):
        raise TransferError(f"{where} and version {manifest.version} disagree on the base")
    if piece.encoding not in get_args(Encoding) or piece.changed > piece.elements:
        raise TransferError(f"{where} has {piece.changed} of {piece.elements} elements in {piece.encoding!r}")
    if not all(_XXH3.fullmatch(value) for value in (piece.base_xxh3 or piece.result_xxh3, piece.result_xxh3)):
        raise TransferError(f"{where} has hashes that are none: {piece.base_xxh3}, {piece.result_xxh3}")


def _check_chunks(manifest: Manifest) -> None:
    filled = [0] * len(manifest.chunks)
    for piece in manifest.pieces:  # In a chunk they lie in their order, from which follows where.
        if piece.chunk >= len(manifest.chunks):
            raise TransferError(f"manifest: tensor {piece.name!r} lies in chunk {piece.chunk} of {len(filled)}")
        if piece.offset != filled[piece.chunk] or piece.length <= 0:
            raise TransferError(
                f"manifest: tensor {piece.name!r} at {list(piece.start)} lies at {piece.offset} of chunk "
                f"{piece.chunk}, expected {filled[piece.chunk]}"
            )
        filled[piece.chunk] += piece.length
    for index, chunk in enumerate(manifest.chunks):
        if not _SHA256.fullmatch(chunk.sha256):
            raise TransferError(f"manifest: chunk {index} has {chunk.sha256!r} for its SHA-256")
        if chunk.size_bytes != filled[index]:
            raise TransferError(f"manifest: pieces fill {filled[index]} bytes of a chunk of {chunk.size_bytes}")


def _check_cover(info: TensorInfo, regions: list[Region], *, whole: bool) -> None:
    if both := overlapping(regions):
        raise TransferError(f"manifest: tensor {info.name!r} has pieces {both[0]} and {both[1]} that overlap")
    covered = sum(region.elements for region in regions)
    if whole and covered != info.elements:
        raise TransferError(f"manifest: pieces of {info.name!r} hold {covered} of its {info.elements} elements")
