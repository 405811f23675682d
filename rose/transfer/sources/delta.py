"""Delta folders that slime and Miles write for SGLang's `/pull_weights`: compressed byte differences."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
import zstandard
from safetensors import SafetensorError, safe_open

from rose.transfer.codec.bits import dtype_name, from_bits, to_bits
from rose.transfer.errors import ConflictError, TransferError
from rose.transfer.package.manifest import TensorInfo
from rose.transfer.sources.checkpoint import EMBEDDING, HEAD, INDEX, files_of, read_json
from rose.transfer.sources.rank_tensors import RankTensor

Bytes = npt.NDArray[np.uint8]
_CHECKSUMS: Mapping[str, Callable[[Any], str]] = {
    "xxh3-128": lambda memory: xxhash.xxh3_128(memory).hexdigest(),
    "adler32": lambda memory: f"{zlib.adler32(memory):08x}",
}
_ENCODINGS = ("xor", "overwrite")  # Either all bytes; or a count (4 bytes), the places (4 each) and the new bytes.
_ENTRY_BYTES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    folder: Path
    version: int
    base_version: int
    encoding: str
    checksum: str

    @classmethod
    def read(cls, folder: Path) -> Delta | None:
        """Return the delta in `folder`, or None if the folder has whole weights. Raises TransferError."""
        index = folder / INDEX
        metadata = read_json(index).get("metadata") if index.exists() else None
        if not isinstance(metadata, dict) or "delta_encoding" not in metadata:
            return None
        known = {"delta_encoding": _ENCODINGS, "checksum_format": _CHECKSUMS, "compression_format": ("zstd",)}
        for name, values in known.items():
            if metadata.get(name) not in values:
                raise TransferError(f"{index}: {name} is {metadata.get(name)!r}, expected one of {', '.join(values)}")
        numbers = [str(metadata.get(name)) for name in ("version", "base_version")]
        for name, number in zip(("version", "base_version"), numbers, strict=True):
            if not (number.isascii() and number.isdecimal()):
                raise TransferError(f"{index}: {name} is {number!r}, expected a number")
        return cls(
            folder=folder,
            version=int(numbers[0]),
            base_version=int(numbers[1]),
            encoding=metadata["delta_encoding"],
            checksum=metadata["checksum_format"],
        )

    def tensors(self, newest: int, base: Mapping[str, torch.Tensor]) -> dict[str, RankTensor]:
        """Apply the delta to the tensors in `base`, which has the version `newest`, and return the results. Raises
        ConflictError unless the delta leads from or to that version."""
        if newest not in (self.version, self.base_version):
            raise ConflictError(
                f"{self.folder} leads from base_version {self.base_version} to version {self.version}, and the newest "
                f"version is {newest}: publish the versions between, or a folder of the whole weights"
            )
        result = {name: RankTensor.whole(_info(name, tensor), tensor) for name, tensor in base.items()}
        changed_files = files_of(self.folder) if read_json(self.folder / INDEX).get("weight_map") else {}
        for file, names in changed_files.items():
            try:
                opened: Any = safe_open(file, framework="np")
                checksums, there = opened.metadata() or {}, set(opened.keys())
            except (OSError, SafetensorError) as error:
                raise TransferError(f"{file} cannot be read ({error}): write it again") from None
            for name in names or there:
                tensor = base.get(name)
                if tensor is None and name.endswith(HEAD):  # Two tensors may be tied, and the folder may name both.
                    tensor = next((base[other] for other in base if other.endswith(EMBEDDING)), None)
                if tensor is None or name not in there:
                    lacks = file if tensor is not None else f"version {newest}"
                    raise TransferError(f"{self.folder}: {lacks} lacks tensor {name!r}: write the delta again")
                apply = partial(self._apply, name, tensor, partial(opened.get_tensor, name), checksums.get(name))
                result[name] = RankTensor.whole(_info(name, tensor), partial(apply, changed=newest != self.version))
        return result

    def _apply(
        self, name: str, base: torch.Tensor, read: Callable[[], Bytes], expected: str | None, *, changed: bool
    ) -> torch.Tensor:
        bits = to_bits(name, base).copy()
        memory = bits.reshape(-1).view(np.uint8)
        if changed:
            most = memory.size if self.encoding == "xor" else 4 + _ENTRY_BYTES * memory.size
            self._change(name, memory, _decompressed(read(), most))
        if (actual := _CHECKSUMS[self.checksum](memory)) != expected:
            raise TransferError(
                f"{self.folder}: tensor {name!r} has checksum {actual} after the delta, expected {expected}: publish a "
                "folder of the whole weights"
            )
        return from_bits(bits, dtype_name(name, base))

    def _change(self, name: str, memory: Bytes, change: Bytes) -> None:
        if self.encoding == "xor" and change.size == memory.size:
            np.bitwise_xor(memory, change, out=memory)
            return
        if self.encoding == "overwrite" and change.size >= 4:
            count = int(change[:4].view("<u4")[0])
            if change.size == 4 + _ENTRY_BYTES * count:
                places = change[4 : 4 + 4 * count].view("<u4")
                if not count or int(places.max()) < memory.size:
                    memory[places] = change[4 + 4 * count :]
                    return
        raise TransferError(f"{self.folder}: the change of tensor {name!r} does not fit its {memory.size} bytes")


def _info(name: str, tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(name, dtype_name(name, tensor), tuple(tensor.shape))


def _decompressed(blob: Bytes, bytes_max: int) -> Bytes:
    """Decompress `blob`. Return at most `bytes_max` + 1 bytes, or no bytes if `blob` is damaged."""
    try:
        return np.frombuffer(zstandard.ZstdDecompressor().stream_reader(blob.data).read(bytes_max + 1), np.uint8)
    except zstandard.ZstdError:
        return np.empty(0, np.uint8)
