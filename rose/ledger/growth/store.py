"""A place outside the ledger for copies of files: a local folder, or any URL that fsspec opens."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError


class Store:
    """The files under one URL. Every method raises LedgerError, which names the file."""

    def __init__(self, url: str) -> None:
        import fsspec  # This import takes 0.1 s, and pricing imports this file.
        from fsspec.implementations.local import LocalFileSystem

        if "::" in url:
            raise LedgerError(f"{url} goes through a cache or an archive file; name the place itself")
        if urlsplit(url).password:
            raise LedgerError("the URL has a password, which the ledger would record; use fsspec's configuration")
        try:
            self._fs, path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise LedgerError(f"cannot open {url}: {error}") from error
        self._path: str = path.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)

    def url(self, name: str = "") -> str:
        url: str = self._fs.unstrip_protocol(f"{self._path}/{name}".rstrip("/"))
        return url

    def local_folder(self) -> Path | None:
        return Path(self._path).resolve() if self._local else None

    def read(self, name: str) -> bytes | None:
        with self._refusals("read", name):
            try:
                content: bytes = self._fs.cat_file(f"{self._path}/{name}")
                return content
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Put `content` at `name` as a whole. In a local folder, it is on disk when this returns."""
        path = f"{self._path}/{name}"
        with self._refusals("write to", name):
            if self._local:
                layout.make_folder(Path(path).parent)
                layout.write_file(Path(path), content)
            else:
                self._fs.pipe_file(path, content)

    def remove(self, name: str) -> None:
        with self._refusals("remove", name):
            self._fs.rm_file(f"{self._path}/{name}")

    def names(self, folder: str) -> list[str]:
        with self._refusals("list", folder):
            self._fs.invalidate_cache()
            try:
                listed = self._fs.ls(f"{self._path}/{folder}", detail=False)
            except FileNotFoundError:
                listed = []
            return sorted(name.rpartition("/")[2] for name in listed)

    @contextmanager
    def _refusals(self, act: str, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise LedgerError(f"cannot {act} {self.url(name)}: {error}") from error
