"""The trainer's folder of published versions.

`VERSION-from-BASE.json` and `.bin` are a delta's manifest and blob, `VERSION-anchor.*` a whole version. A package
exists once its manifest does, which is renamed into place last. One process publishes to a folder; any number read.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from rose.runtime.transfer import codec
from rose.runtime.transfer.bits import bits_dtype, digest, dtype_name, to_bits
from rose.runtime.transfer.codec import Bits
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest, Package, TensorEntry, plan


@dataclass(frozen=True, slots=True)
class Published:
    """What `publish` wrote: the delta (None for the first version), and the anchor where one was due."""

    version: int
    delta: Manifest | None
    anchor: Manifest | None

    @property
    def manifest(self) -> Manifest:
        """The delta if there is one, else the anchor."""
        manifest = self.delta or self.anchor
        assert manifest is not None
        return manifest


@dataclass(frozen=True, slots=True)
class _Held:
    """The last published version, as every receiver of it holds it."""

    version: int
    dtypes: dict[str, str]
    bits: dict[str, Bits]


class VersionStore:
    """Publishes versions into `folder` and lists what it holds.

    Every `anchor_every`-th version is also published whole. Packages older than the `anchors_kept`-th newest anchor
    are removed; with two, a receiver that began to fetch from the older one can still finish after a new one came.
    """

    def __init__(self, folder: Path, *, anchor_every: int = 8, anchors_kept: int = 2) -> None:
        if anchor_every < 1 or anchors_kept < 1:
            raise ValueError(f"anchor_every {anchor_every} and anchors_kept {anchors_kept} must be at least 1")
        self.folder = folder
        self.anchor_every = anchor_every
        self.anchors_kept = anchors_kept
        self._held: _Held | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def packages(self) -> list[Package]:
        """What the folder holds now, oldest version first; safe beside a publisher in another process."""
        found = []
        for path in self.folder.glob("*.json"):
            try:
                package = Package.parse(path.stem, path.with_suffix(".bin").stat().st_size)
            except FileNotFoundError:  # Pruned between the listing and here.
                continue
            if package is not None:
                found.append(package)
        return sorted(found, key=lambda package: (package.version, package.base_version is None))

    def latest(self) -> int | None:
        """The newest version, or None if nothing was published."""
        return max((package.version for package in self.packages()), default=None)

    def manifest(self, package: Package) -> Manifest:
        """The manifest of a package. Raises TransferError if it is damaged or gone."""
        try:
            return Manifest.from_bytes((self.folder / f"{package.stem}.json").read_bytes())
        except FileNotFoundError:
            raise TransferError(f"{self.folder} holds no package {package.stem}")

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> Published:
        """Write `version` as a delta against the version published before it, and as an anchor where one is due.

        A tensor that shares its memory with an earlier one (tied embeddings) is left out. The blob is decoded again
        and compared before it becomes visible. Raises TransferError for a version that is not newer, another layout
        than the version before, or a dtype other than bf16, fp16 and fp32.
        """
        started_ns = time.monotonic_ns()
        base = self._base()
        dtypes, bits = _distinct(tensors)
        if base is not None:
            if version <= base.version:
                raise TransferError(f"version {version} is not newer than version {base.version} in {self.folder}")
            _check_same_layout(base, dtypes, bits)
        for stale in self.folder.glob("*.tmp"):
            stale.unlink()
        delta = anchor = None
        if base is not None:
            delta = self._write(version, base, dtypes, bits, started_ns)
        if base is None or self._anchor_due():
            anchor = self._write(version, None, dtypes, bits, time.monotonic_ns())
        self._held = _Held(version, dtypes, bits)
        self._prune()
        return Published(version, delta, anchor)

    def _base(self) -> _Held | None:
        if self._held is None and (version := self.latest()) is not None:
            self._held = self._read(version)
        return self._held

    def _read(self, version: int) -> _Held:
        """Decode a version from the folder, as a restarted trainer must before it can publish the next delta."""
        bits: dict[str, Bits] = {}
        manifest = None
        for package in plan(self.packages(), version, None):
            manifest = self.manifest(package)
            blob = (self.folder / f"{package.stem}.bin").read_bytes()
            if hashlib.sha256(blob).hexdigest() != manifest.blob_sha256:
                raise TransferError(f"blob of {package.stem} in {self.folder} does not match its SHA-256")
            for entry in manifest.tensors:
                old = bits.get(entry.name)
                if old is None:
                    old = np.empty(entry.shape, bits_dtype(entry.dtype))
                bits[entry.name] = codec.decode(old, blob[entry.offset : entry.offset + entry.length])
                if digest(bits[entry.name]) != entry.result_xxh3:
                    raise TransferError(f"tensor {entry.name!r} of {package.stem} does not decode to its hash")
        assert manifest is not None
        return _Held(version, {entry.name: entry.dtype for entry in manifest.tensors}, bits)

    def _write(
        self, version: int, base: _Held | None, dtypes: dict[str, str], bits: dict[str, Bits], started_ns: int
    ) -> Manifest:
        package = Package(version, None if base is None else base.version)
        blob_tmp = self.folder / f"{package.stem}.bin.tmp"
        sha256 = hashlib.sha256()
        entries: list[TensorEntry] = []
        offset = 0
        with blob_tmp.open("wb") as file:
            for name, new in bits.items():
                old = None if base is None else base.bits[name]
                encoded = codec.encode(old, new)
                result = digest(new)
                if digest(codec.decode(new if old is None else old, encoded)) != result:
                    raise TransferError(f"tensor {name!r} of version {version} does not decode to what was encoded")
                header = codec.read_header(encoded)
                entries.append(
                    TensorEntry(
                        name=name,
                        dtype=dtypes[name],
                        shape=new.shape,
                        offset=offset,
                        length=len(encoded),
                        encoding=header.encoding,
                        changed=header.changed,
                        base_xxh3=None if old is None else digest(old),
                        result_xxh3=result,
                    )
                )
                sha256.update(encoded)
                file.write(encoded)
                offset += len(encoded)
            _sync(file)
        manifest = Manifest(
            version=version,
            base_version=package.base_version,
            blob_bytes=offset,
            blob_sha256=sha256.hexdigest(),
            encode_ns=time.monotonic_ns() - started_ns,
            tensors=tuple(entries),
        )
        manifest_tmp = self.folder / f"{package.stem}.json.tmp"
        with manifest_tmp.open("wb") as file:
            file.write(manifest.to_bytes())
            _sync(file)
        blob_tmp.rename(self.folder / f"{package.stem}.bin")
        manifest_tmp.rename(self.folder / f"{package.stem}.json")
        _sync_folder(self.folder)
        return manifest

    def _anchor_due(self) -> bool:
        packages = self.packages()
        anchor = max(package.version for package in packages if package.base_version is None)
        deltas = {package.version for package in packages if package.version > anchor}
        return len(deltas) >= self.anchor_every

    def _prune(self) -> None:
        packages = self.packages()
        anchors = [package.version for package in packages if package.base_version is None]
        if len(anchors) <= self.anchors_kept:
            return
        oldest = anchors[-self.anchors_kept]
        for package in packages:
            # The delta that led to the oldest anchor has a base that is gone.
            if package.version < oldest or (package.version == oldest and package.base_version is not None):
                # Manifest first: a package without one does not exist. An open file outlives its name.
                (self.folder / f"{package.stem}.json").unlink()
                (self.folder / f"{package.stem}.bin").unlink()


def _distinct(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, str], dict[str, Bits]]:
    """Dtypes and private copies of the bits; the trainer goes on changing its tensors in place."""
    dtypes: dict[str, str] = {}
    bits: dict[str, Bits] = {}
    seen: set[tuple[int, torch.Size, tuple[int, ...], torch.dtype]] = set()
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        dtypes[name] = dtype_name(name, tensor)
        bits[name] = to_bits(name, tensor).copy()
    if not bits:
        raise TransferError("there are no tensors to publish")
    return dtypes, bits


def _check_same_layout(base: _Held, dtypes: dict[str, str], bits: dict[str, Bits]) -> None:
    if list(bits) != list(base.bits):
        odd = sorted(set(bits) ^ set(base.bits)) or "the order of names"
        raise TransferError(f"tensors differ from version {base.version} in {odd}; publish to a new store")
    for name, array in bits.items():
        before = (base.dtypes[name], base.bits[name].shape)
        if (dtypes[name], array.shape) != before:
            raise TransferError(
                f"tensor {name!r} is {dtypes[name]}{array.shape}, expected {before[0]}{before[1]} as in "
                f"version {base.version}; publish to a new store"
            )


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
