"""A folder of fetched and verified packages. It has their manifests `NN.json` in order, and the folder `chunks`."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Regions
from rose.transfer.package.manifest import Chunk, Manifest, check_chain
from rose.transfer.store.chunks import map_file
from rose.transfer.turns import PORTION_BYTES, Turn, at_once


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """Packages that lead from `base_version` to `version`. If `base_version` is None, they need no base."""

    folder: Path
    manifests: tuple[Manifest, ...]
    wire_bytes: int = 0  # Bytes of HTTP bodies received; 0 if the folder was already staged.
    fetch_ns: int = 0
    verify_ns: int = 0

    @property
    def version(self) -> int:
        return self.manifests[-1].version

    @property
    def base_version(self) -> int | None:
        return self.manifests[0].base_version

    @property
    def dense_bytes(self) -> int:
        return self.manifests[-1].dense_bytes

    @property
    def changed_elements(self) -> int:
        """Return the number of changed elements. An element that changed in two packages counts twice."""
        return sum(manifest.changed_elements for manifest in self.manifests)

    @property
    def encode_ns(self) -> int:
        return sum(manifest.encode_ns for manifest in self.manifests)

    def chunk(self, chunk: Chunk) -> memoryview:
        """Return a chunk as a memory map. Raises TransferError if its size is wrong."""
        return map_file(self.folder / "chunks" / chunk.sha256, chunk.size_bytes)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @classmethod
    def open(
        cls, folder: Path, regions: Regions | None = None, turn: Turn = at_once, *, signer: str | None = None
    ) -> Staged:
        """Open a folder of packages. Check that `signer` signed them (None: no check). Check the hashes of the chunks
        that `regions` need (None: of the present chunks). Raises TransferError."""
        started_ns = time.monotonic_ns()
        manifests: list[Manifest] = []
        for index, path in enumerate(sorted(folder.glob("*.json"), key=lambda path: (len(path.name), path.name))):
            if path.name != f"{index:02d}.json":
                raise TransferError(f"staged folder {folder} lacks {index:02d}.json; fetch the version again")
            manifests.append(Manifest.from_bytes(path.read_bytes(), signer=signer))
        if not manifests:
            raise TransferError(f"there is no staged version in {folder}; fetch it first")
        check_chain(manifests)
        staged = cls(folder=folder, manifests=tuple(manifests))
        present = {path.name for path in (folder / "chunks").glob("*")}
        # A chain that lost its last manifest has such chunks too.
        if odd := present - {chunk.sha256 for manifest in manifests for chunk in manifest.chunks}:
            raise TransferError(f"staged folder {folder} holds chunks {sorted(odd)} that its manifests do not list")
        for chunk in {chunk for manifest in manifests for chunk in manifest.chunks_for(regions)}:
            if regions is not None or chunk.sha256 in present:
                staged._check(chunk, turn)
        return dataclasses.replace(staged, verify_ns=time.monotonic_ns() - started_ns)

    def _check(self, chunk: Chunk, turn: Turn) -> None:
        content, hasher = self.chunk(chunk), hashlib.sha256()
        for start in range(0, len(content), PORTION_BYTES):
            with turn():
                hasher.update(content[start : start + PORTION_BYTES])
        if (actual := hasher.hexdigest()) != chunk.sha256:
            raise TransferError(f"chunk {self.folder / 'chunks' / chunk.sha256} has SHA-256 {actual}; fetch it again")
