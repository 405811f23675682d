"""The manifests of a store. A package exists as soon as its manifest exists. Changes need the store's lock."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from rose.ledger.files.keys import Key
from rose.ledger.files.layout import locked, make_folder, sync_file, sync_folder
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Manifest, Package, index_bytes

_SUFFIX = ".json"


class Catalog:
    def __init__(self, folder: Path, key: Key | None = None) -> None:
        self.folder, self._key = folder, key
        make_folder(folder)
        self._known: dict[str, tuple[Package, frozenset[str]]] = {}  # File name -> package, SHA-256 of its chunks.
        self._last: Manifest | None = None  # The manifest that was last added or read: the next version begins there.

    def locked(self) -> AbstractContextManager[None]:
        return locked(self.folder / "store.lock")

    def packages(self) -> list[Package]:
        return [package for package, _ in self._listed()]

    def latest(self) -> int | None:
        return max((package.version for package in self.packages()), default=None)

    def manifest(self, package: Package) -> Manifest:
        path = self.folder / _name(package)
        try:
            self._last = manifest = Manifest.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise TransferError(f"{self.folder} has no package {package.stem}")
        except TransferError as error:
            raise TransferError(f"{path} is damaged: {error}")
        return manifest

    def any_of(self, version: int) -> Manifest:
        if not (packages := [package for package in self.packages() if package.version == version]):
            raise TransferError(f"version {version} is not in {self.folder}; publish it first")
        last = self._last
        return last if last is not None and last.package in packages else self.manifest(packages[0])

    def chunks(self) -> set[str]:
        return {sha256 for _, chunks in self._listed() for sha256 in chunks}

    def add(self, manifests: Sequence[Manifest]) -> None:
        """Add packages in order. If OSError is raised, none of them was added."""
        self._replace({self.folder / _name(manifest.package): manifest.to_bytes(self._key) for manifest in manifests})
        self._known |= {_name(manifest.package): _entry(manifest) for manifest in manifests}
        self._last = manifests[-1]
        self.refresh()

    def remove(self, packages: Sequence[Package]) -> None:
        for package in reversed(packages):
            (self.folder / _name(package)).unlink()
        for name in self._names():
            if name.endswith(".tmp"):  # A killed process left this file.
                (self.folder / name).unlink()

    def refresh(self) -> None:
        self._replace({self.folder / "index.json": index_bytes(self.packages())})

    def _replace(self, files: dict[Path, bytes]) -> None:
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

    def _listed(self) -> list[tuple[Package, frozenset[str]]]:
        entries = {}
        for name in self._names():
            package = Package.parse(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None
            if package is None:
                continue
            try:
                entries[name] = self._known.get(name) or _entry(self.manifest(package))
            except TransferError:
                if (self.folder / name).exists():  # Otherwise the file was removed after the listing.
                    raise
        self._known = dict(sorted(entries.items(), key=lambda item: _order(item[1][0])))
        return list(self._known.values())

    def _names(self) -> list[str]:
        return os.listdir(self.folder)  # noqa: PTH208 - a Path for each name takes longer than all other work


def _entry(manifest: Manifest) -> tuple[Package, frozenset[str]]:
    return manifest.package, frozenset(chunk.sha256 for chunk in manifest.chunks)


def _order(package: Package) -> tuple[int, bool, int]:
    return package.version, package.base_version is None, -(package.base_version or 0)


def _name(package: Package) -> str:
    return f"{package.stem}{_SUFFIX}"
