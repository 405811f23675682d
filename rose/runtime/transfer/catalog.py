"""A store's manifests: which packages there are, and how they appear and disappear.

A package exists once its manifest does. Nothing here is written or removed but with the lock held.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.layout import locked, make_folder, sync_file, sync_folder
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest, Package, index_bytes

_INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is remembered of a manifest, which never changes."""

    blob_bytes: int
    chunks: frozenset[str]


class Catalog:
    """The manifests in `folder`, and `index.json`, which lists them for readers that cannot list a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)
        self._facts: dict[str, _Facts] = {}

    def locked(self) -> AbstractContextManager[None]:
        """Hold this while anything is changed; other processes and threads wait for it."""
        return locked(self.folder / "store.lock")

    def packages(self) -> list[Package]:
        """What there is now, oldest version first. Raises TransferError if a manifest is damaged."""
        found = []
        for package in self._listed():
            if (facts := self._facts_of(package)) is not None:
                found.append(Package(package.version, package.base_version, facts.blob_bytes))
        return found

    def latest(self) -> int | None:
        """The newest version, None if there is none."""
        return max((package.version for package in self._listed()), default=None)

    def manifest(self, package: Package) -> Manifest:
        """Raises TransferError if it is damaged or gone."""
        path = self._path(package)
        try:
            return Manifest.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise TransferError(f"{self.folder} holds no package {package.stem}")
        except TransferError as error:
            raise TransferError(f"{path} is damaged: {error}")

    def any_of(self, version: int) -> Manifest:
        """The manifest of one of the packages that lead to a version: all name the same tensors and results.

        Raises TransferError if there is none.
        """
        package = next((package for package in self._listed() if package.version == version), None)
        if package is None:
            raise TransferError(f"version {version} is not in {self.folder}; publish it first")
        return self.manifest(package)

    def chunks(self) -> set[str]:
        """SHA-256 of all chunks that are named."""
        facts = [self._facts_of(package) for package in self._listed()]
        return {sha256 for each in facts if each is not None for sha256 in each.chunks}

    def add(self, manifests: Sequence[Manifest]) -> None:
        """Make packages exist, in this order. Raises OSError, before any of them does, if there is no room."""
        packages = [*self.packages(), *(manifest.package for manifest in manifests)]
        files = {self._path(manifest.package): manifest.to_bytes() for manifest in manifests}
        self._replace({**files, self.folder / _INDEX: index_bytes(_ordered(packages))})

    def remove(self, packages: Iterable[Package]) -> None:
        """Make packages disappear, the newest first: if this is cut short, what is left can still be reached.

        The index names them until `refresh`.
        """
        for package in reversed(_ordered(packages)):
            self._path(package).unlink()
            self._facts.pop(package.stem, None)
        for left in self.folder.glob(".*.tmp"):  # By a process that was killed.
            left.unlink()

    def refresh(self) -> None:
        """Bring the index up to date. Raises OSError if there is no room."""
        self._replace({self.folder / _INDEX: index_bytes(self.packages())})

    def _replace(self, files: dict[Path, bytes]) -> None:
        """Write files, all on disk before the first gets its name."""
        written: dict[Path, Path] = {}
        try:
            for path, content in files.items():
                written[path] = path.with_name(f".{path.name}.{os.getpid()}.tmp")
                written[path].write_bytes(content)
                sync_file(written[path])
            for path, temporary in written.items():
                temporary.rename(path)
        finally:
            for temporary in written.values():
                temporary.unlink(missing_ok=True)
        sync_folder(self.folder)

    def _listed(self) -> list[Package]:
        found = (Package.parse(path.stem) for path in self.folder.glob("*.json"))
        return _ordered(package for package in found if package is not None)

    def _facts_of(self, package: Package) -> _Facts | None:
        if package.stem not in self._facts:
            try:
                manifest = self.manifest(package)
            except TransferError:
                if self._path(package).exists():
                    raise
                return None  # Removed since it was listed.
            self._facts[package.stem] = _Facts(manifest.blob_bytes, frozenset(c.sha256 for c in manifest.chunks))
        return self._facts[package.stem]

    def _path(self, package: Package) -> Path:
        return self.folder / f"{package.stem}.json"


def _ordered(packages: Iterable[Package]) -> list[Package]:
    """By version; of one version deltas first, the latest base first."""
    return sorted(packages, key=lambda p: (p.version, p.base_version is None, -(p.base_version or 0)))
