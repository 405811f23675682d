"""What a package of weights holds: one package is either an anchor (a whole version) or a delta between two.

A manifest is JSON in one canonical form, with its own SHA-256, so that no bit of it can change unnoticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rose.runtime.transfer.bits import bits_dtype, is_dtype
from rose.runtime.transfer.codec import Encoding
from rose.runtime.transfer.errors import TransferError

_STEM = re.compile(r"(\d{8,})-(?:anchor|from-(\d{8,}))")


@dataclass(frozen=True, slots=True)
class Package:
    """The name of a package: it leads to `version`, from `base_version` or (an anchor) from nothing."""

    version: int
    base_version: int | None
    #: Size of the blob, for choosing the cheapest way to a version.
    blob_bytes: int = dataclasses.field(default=0, compare=False)

    @property
    def stem(self) -> str:
        """File name without suffix; `parse` reads it back."""
        origin = "anchor" if self.base_version is None else f"from-{self.base_version:08d}"
        return f"{self.version:08d}-{origin}"

    @classmethod
    def parse(cls, stem: str, blob_bytes: int = 0) -> Package | None:
        """The package a file name stands for, or None if it stands for none."""
        match = _STEM.fullmatch(stem)
        if match is None:
            return None
        return cls(int(match[1]), None if match[2] is None else int(match[2]), blob_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """One tensor: where its encoded bytes lie in the blob, and the XXH3-128 of what it turns into what."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    encoding: Encoding
    changed: int
    base_xxh3: str | None
    result_xxh3: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for side in self.shape:
            count *= side
        return count

    @property
    def dense_bytes(self) -> int:
        """Size of the tensor in memory."""
        return self.elements * bits_dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A package: its tensors in the order of the blob, and the blob's own size and SHA-256."""

    version: int
    base_version: int | None
    blob_bytes: int
    blob_sha256: str
    #: What the publisher spent on comparing, encoding and checking.
    encode_ns: int
    tensors: tuple[TensorEntry, ...]

    @property
    def package(self) -> Package:
        """The package this is the manifest of."""
        return Package(self.version, self.base_version, self.blob_bytes)

    @property
    def total_elements(self) -> int:
        """Elements of all tensors."""
        return sum(entry.elements for entry in self.tensors)

    @property
    def changed_elements(self) -> int:
        """Elements that differ from the base; all of them in an anchor."""
        return sum(entry.changed for entry in self.tensors)

    @property
    def dense_bytes(self) -> int:
        """Size of the whole version in memory."""
        return sum(entry.dense_bytes for entry in self.tensors)

    @property
    def weights_sha256(self) -> str:
        """Identity of the weights themselves: the same for a version however it was reached."""
        lines = (f"{e.name} {e.dtype} {list(e.shape)} {e.result_xxh3}\n" for e in sorted(self.tensors, key=_by_name))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """The canonical JSON: two manifests are equal exactly if these bytes are."""
        body = dataclasses.asdict(self)
        body["total_elements"] = self.total_elements
        body["changed_elements"] = self.changed_elements
        body["manifest_sha256"] = hashlib.sha256(_canonical(body)).hexdigest()
        return _canonical(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Parse and check; anything but the very bytes `to_bytes` makes is refused with TransferError."""
        try:
            body = json.loads(data)
            entries = tuple(TensorEntry(**{**entry, "shape": tuple(entry["shape"])}) for entry in body["tensors"])
            derived = ("total_elements", "changed_elements", "manifest_sha256")
            fields = {key: value for key, value in body.items() if key not in derived}
            manifest = cls(**{**fields, "tensors": entries})
            # Types and values alike: whatever was altered, the bytes made anew differ from those received.
            intact = manifest.to_bytes() == data
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TransferError(f"manifest cannot be read ({type(error).__name__}: {error}); fetch it again")
        if not intact:
            raise TransferError(f"manifest of version {manifest.version} fails its own SHA-256; fetch it again")
        manifest._check_layout()
        return manifest

    def _check_layout(self) -> None:
        offset = 0
        for entry in self.tensors:
            if not is_dtype(entry.dtype):
                raise TransferError(f"manifest: tensor {entry.name!r} has dtype {entry.dtype!r}, which is not known")
            if entry.offset != offset or entry.length <= 0:
                raise TransferError(f"manifest: tensor {entry.name!r} lies at {entry.offset}, expected {offset}")
            if (entry.base_xxh3 is None) != (self.base_version is None):
                raise TransferError(f"manifest: tensor {entry.name!r} and version {self.version} disagree on the base")
            offset += entry.length
        if offset != self.blob_bytes:
            raise TransferError(f"manifest: tensors fill {offset} bytes of a blob of {self.blob_bytes}")
        if len({entry.name for entry in self.tensors}) != len(self.tensors):
            raise TransferError(f"manifest of version {self.version} names a tensor twice")


def plan(packages: Iterable[Package], version: int, have: int | None) -> list[Package]:
    """The fewest bytes that lead from `have` (None: nothing) to `version`, in the order to apply.

    Raises TransferError if no package, or no chain of them, leads there.
    """
    ways: dict[int | None, tuple[int, list[Package]]] = {None: (0, [])}
    if have is not None:
        ways[have] = (0, [])
    known = sorted(packages, key=lambda package: package.version)
    for package in known:
        if package.base_version in ways and package.version != have:
            cost, way = ways[package.base_version]
            candidate = (cost + package.blob_bytes, [*way, package])
            if package.version not in ways or candidate[0] < ways[package.version][0]:
                ways[package.version] = candidate
    if version not in ways or not ways[version][1]:
        held = sorted({package.version for package in known})
        start = "nothing" if have is None else f"version {have}"
        raise TransferError(f"no way from {start} to version {version}: the store holds versions {held}")
    return ways[version][1]


def check_chain(manifests: list[Manifest]) -> None:
    """Refuse a chain whose links do not meet: each must begin where the one before it ended, tensor by tensor."""
    for before, after in itertools.pairwise(manifests):
        if after.base_version != before.version:
            raise TransferError(f"delta from version {after.base_version} cannot follow version {before.version}")
        if layout(before) != layout(after):
            raise TransferError(f"versions {before.version} and {after.version} differ in names, dtypes or shapes")
        for old, new in zip(before.tensors, after.tensors, strict=True):
            if new.base_xxh3 != old.result_xxh3:
                raise TransferError(
                    f"tensor {new.name!r}: delta to version {after.version} expects base {new.base_xxh3}, "
                    f"version {before.version} is {old.result_xxh3}"
                )


def layout(manifest: Manifest) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of every tensor, in order."""
    return [(entry.name, entry.dtype, entry.shape) for entry in manifest.tensors]


def _by_name(entry: TensorEntry) -> str:
    return entry.name


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
