"""A way to a version, fetched and verified, lying in a folder of this host: what `apply` reads.

The folder holds, for each package in order, `NN.json` and `NN.bin`; it appears under its name only when complete.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rose.runtime.transfer.codec import Encoding
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest, check_chain


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """Packages that lead from `base_version` (None: from any state) to `version`."""

    folder: Path
    manifests: tuple[Manifest, ...]
    #: Bytes of HTTP bodies received; 0 when the folder was found already staged.
    wire_bytes: int = 0
    fetch_ns: int = 0
    verify_ns: int = 0

    @property
    def version(self) -> int:
        """The version this leads to."""
        return self.manifests[-1].version

    @property
    def base_version(self) -> int | None:
        """The version an engine must be at, or None."""
        return self.manifests[0].base_version

    @property
    def encoding(self) -> Encoding:
        """`delta` if an earlier version is needed, `dense` if it begins with an anchor."""
        return "dense" if self.base_version is None else "delta"

    @property
    def dense_bytes(self) -> int:
        """Size of the whole version in memory."""
        return self.manifests[-1].dense_bytes

    @property
    def changed_elements(self) -> int:
        """Elements sent as changed; one that changed in two links of a chain counts twice."""
        return sum(manifest.changed_elements for manifest in self.manifests)

    @property
    def encode_ns(self) -> int:
        """What the publisher spent on these packages."""
        return sum(manifest.encode_ns for manifest in self.manifests)

    def blob_path(self, index: int) -> Path:
        """The blob of the package at `index`."""
        return self.folder / f"{index:02d}.bin"

    def remove(self) -> None:
        """Delete the folder; call it once applied."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @classmethod
    def open(cls, folder: Path) -> Staged:
        """Open a staged folder, checking every byte again. Raises TransferError if anything is missing or altered."""
        started_ns = time.monotonic_ns()
        manifests: list[Manifest] = []
        for index, path in enumerate(sorted(folder.glob("*.json"))):
            if path.name != f"{index:02d}.json":
                raise TransferError(f"staged folder {folder} lacks {index:02d}.json; fetch the version again")
            manifest = Manifest.from_bytes(path.read_bytes())
            check_blob(path.with_suffix(".bin"), manifest)
            manifests.append(manifest)
        if not manifests:
            raise TransferError(f"there is no staged version in {folder}; fetch it first")
        check_chain(manifests)
        return cls(folder=folder, manifests=tuple(manifests), verify_ns=time.monotonic_ns() - started_ns)


def check_blob(path: Path, manifest: Manifest) -> None:
    """Raise TransferError unless the file is the manifest's blob."""
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise TransferError(f"staged blob {path} is missing; fetch version {manifest.version} again")
    if actual != manifest.blob_sha256:
        raise TransferError(
            f"blob {path} of version {manifest.version} has SHA-256 {actual}, expected {manifest.blob_sha256}"
        )
