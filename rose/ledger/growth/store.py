"""A place outside the ledger that files are copied to and from: a local folder, or any URL that fsspec opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rose.ledger import layout
from rose.ledger.layout import LedgerError

_T = TypeVar("_T")


class Store:
    """Files under one URL. Every method raises LedgerError, which names the file, if the place refuses it."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        """`options` go to fsspec as they are; credentials are best left to its own configuration and environment."""
        # It takes a tenth of a second, and whoever prices a ledger imports this file.
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        if "::" in url:
            raise LedgerError(f"{url} goes through a cache or an archive file; name the place itself")
        if urlsplit(url).password:
            raise LedgerError("the URL holds a password, which the ledger would record; give it as --storage-option")
        try:
            self._fs, path = fsspec.core.url_to_fs(url, **(options or {}))
        except (ImportError, ValueError) as error:
            raise LedgerError(f"cannot open {url}: {error}") from error
        self._path: str = path.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)

    def url(self, name: str = "") -> str:
        """The URL of a file here."""
        url: str = self._fs.unstrip_protocol(f"{self._path}/{name}".rstrip("/"))
        return url

    def local_folder(self) -> Path | None:
        """The folder, if this is one of this machine."""
        return Path(self._path).resolve() if self._local else None

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
        try:
            content: bytes = self._fs.cat_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return None
        # Each kind of storage has errors of its own.
        except Exception as error:
            raise LedgerError(f"cannot read {self.url(name)}: {error}") from error
        return content

    def write(self, name: str, content: bytes) -> None:
        """Put `content` at `name`, as a whole; in a local folder it is on disk when this returns."""
        self._do(name, lambda path: self._write(path, content))

    def remove(self, name: str) -> None:
        """Remove a file that is there."""
        self._do(name, lambda path: self._fs.rm_file(path))

    def names(self, folder: str) -> list[str]:
        """Names of the files in `folder`, in order; none if there is no such folder."""
        return self._do(folder, self._names)

    def _do(self, name: str, act: Callable[[str], _T]) -> _T:
        try:
            return act(f"{self._path}/{name}")
        except LedgerError:
            raise
        # Each kind of storage has errors of its own.
        except Exception as error:
            raise LedgerError(f"cannot write to {self.url(name)}: {error}") from error

    def _write(self, path: str, content: bytes) -> None:
        if self._local:
            layout.make_folder(Path(path).parent)
            layout.write_file(Path(path), content)
        else:
            self._fs.pipe_file(path, content)

    def _names(self, path: str) -> list[str]:
        # What another process put there since an earlier listing must be seen.
        self._fs.invalidate_cache()
        try:
            return sorted(listed.rpartition("/")[2] for listed in self._fs.ls(path, detail=False))
        except FileNotFoundError:
            return []
