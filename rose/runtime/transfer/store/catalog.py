"""A store's manifests: which packages there are, and how they appear and disappear.

A package exists once its manifest does. Nothing here is written or removed but with the lock held. A manifest never
changes, so what is known of one is not read again: for as many versions as there are, only their names are listed.
"""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.layout import locked, make_folder, sync_file, sync_folder
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import Manifest, Package, index_of, index_row

_INDEX = "index.json"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is remembered of a manifest."""

    package: Package
    chunks: frozenset[str]
    index_row: str

    @classmethod
    def of(cls, manifest: Manifest) -> _Entry:
        package = manifest.package
        return cls(package, frozenset(chunk.sha256 for chunk in manifest.chunks), index_row(package))

    @property
    def order(self) -> tuple[int, bool, int]:
        """By version; of one version deltas first, the latest base first."""
        return self.package.version, self.package.base_version is None, -(self.package.base_version or 0)


class Catalog:
    """The manifests in `folder`, and `index.json`, which lists them for readers that cannot list a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)
        #: The names in the folder when it was listed last, and what they are, in order.
        self._seen: tuple[frozenset[str], list[_Entry]] = (frozenset(), [])
        #: What was added, until it is listed.
        self._added: dict[str, Manifest] = {}
        #: What was added or read last: the next version begins there.
        self._last: Manifest | None = None

    def locked(self) -> AbstractContextManager[None]:
        """Hold this while anything is changed; other processes and threads wait for it."""
        return locked(self.folder / "store.lock")

    def packages(self) -> list[Package]:
        """What there is now, oldest version first. Raises TransferError if a manifest is damaged."""
        return [entry.package for entry in self._listed()]

    def latest(self) -> int | None:
        """The newest version, None if there is none. Raises TransferError if a manifest is damaged."""
        listed = self._listed()
        return listed[-1].package.version if listed else None

    def latest_anchor(self) -> int | None:
        """The newest version that is there whole, None if there is none. Raises TransferError as `packages` does."""
        return next((p.version for p in reversed(self.packages()) if p.base_version is None), None)

    def manifest(self, package: Package) -> Manifest:
        """Raises TransferError if it is damaged or gone."""
        path = self.folder / _name(package)
        try:
            manifest = Manifest.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise TransferError(f"{self.folder} holds no package {package.stem}")
        except TransferError as error:
            raise TransferError(f"{path} is damaged: {error}")
        self._last = manifest
        return manifest

    def any_of(self, version: int) -> Manifest:
        """The manifest of one of the packages that lead to a version: all name the same tensors and results.

        Raises TransferError if there is none.
        """
        packages = [package for package in self.packages() if package.version == version]
        if not packages:
            raise TransferError(f"version {version} is not in {self.folder}; publish it first")
        last = self._last
        return last if last is not None and last.package in packages else self.manifest(packages[0])

    def chunks(self) -> set[str]:
        """SHA-256 of all chunks that are named."""
        return {sha256 for entry in self._listed() for sha256 in entry.chunks}

    def add(self, manifests: Sequence[Manifest]) -> None:
        """Make packages exist, in this order. Raises OSError, before any of them does, if there is no room.

        The index names them a moment later: should it not be written, `refresh` does that.
        """
        self._added = {_name(manifest.package): manifest for manifest in manifests}
        self._replace({self.folder / name: manifest.to_bytes() for name, manifest in self._added.items()})
        self._last = manifests[-1]
        self.refresh()
        self._added = {}

    def remove(self, packages: Sequence[Package]) -> None:
        """Make packages disappear, the last first: if this is cut short, what is left can still be reached.

        The index names them until `refresh`.
        """
        for package in reversed(packages):
            (self.folder / _name(package)).unlink()
        for name in self._names():
            if name.endswith(".tmp"):  # Left by a process that was killed.
                (self.folder / name).unlink()

    def refresh(self) -> None:
        """Bring the index up to date. Raises OSError if there is no room."""
        self._replace({self.folder / _INDEX: index_of(entry.index_row for entry in self._listed())})

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

    def _listed(self) -> list[_Entry]:
        names = self._names()
        before, entries = self._seen
        if names != before:
            gone = {name for name in before - names if name.endswith(_SUFFIX)}
            entries = [entry for entry in entries if not gone or _name(entry.package) not in gone]
            for name in names - before:
                if (entry := self._entry(name)) is not None:
                    insort(entries, entry, key=lambda entry: entry.order)
            self._seen = names, entries
        return entries

    def _entry(self, name: str) -> _Entry | None:
        """None if it is no package's, or was removed since it was listed."""
        package = Package.parse(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None
        if package is None:
            return None
        try:
            return _Entry.of(self._added[name] if name in self._added else self.manifest(package))
        except TransferError:
            if (self.folder / name).exists():
                raise
            return None

    def _names(self) -> frozenset[str]:
        return frozenset(os.listdir(self.folder))  # noqa: PTH208 - a path for each takes longer than all the rest


def _name(package: Package) -> str:
    return f"{package.stem}{_SUFFIX}"
