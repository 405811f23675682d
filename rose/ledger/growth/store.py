"""A place outside the ledger that files are copied to and from: a local folder, or any URL that fsspec opens."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rose.ledger import layout
from rose.ledger.growth import object_lock
from rose.ledger.growth.object_lock import ObjectLock
from rose.ledger.layout import LedgerError

_T = TypeVar("_T")


class Store:
    """Files under one URL. Every method raises LedgerError, which names the file, if the place refuses it."""

    def __init__(self, url: str, options: dict[str, Any] | None = None, lock: ObjectLock | None = None) -> None:
        """`options` go to fsspec as they are; credentials are best left to its own configuration and environment.

        With `lock` each file is locked as it is written; `hold` says whether the lock stands.
        """
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
        self._lock = lock
        if lock is not None:
            object_lock.check_place(self._fs, self._path)

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

    def hold(self, name: str) -> datetime | None:
        """Until when a file that is there is locked, once that is as long as it should be; None without a lock."""
        return (
            None
            if (lock := self._lock) is None
            else self._do(name, lambda path: object_lock.hold(self._fs, path, lock))
        )

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file to `name`, as a whole; it may lie in this very folder, and is then moved."""
        self._do(name, lambda path: self._upload(source, path))

    def exists(self, name: str) -> bool:
        """Whether there is a file `name`."""
        return self._do(name, lambda path: bool(self._fs.exists(path)))

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
            locked = {} if self._lock is None else self._lock.headers(datetime.now(UTC))
            self._fs.pipe_file(path, content, **locked)

    def _upload(self, source: Path, path: str) -> None:
        if self._local:
            layout.replace_file(source, Path(path))
        else:
            self._fs.put_file(os.fspath(source), path)

    def _names(self, path: str) -> list[str]:
        # What another process put there since an earlier listing must be seen.
        self._fs.invalidate_cache()
        try:
            return sorted(listed.rpartition("/")[2] for listed in self._fs.ls(path, detail=False))
        except FileNotFoundError:
            return []
