"""The chunks of a store: files named by SHA-256. Writers share a lock. A removal needs this lock exclusively."""

import fcntl
import hashlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rose.ledger.files.layout import make_folder, sync_file, sync_folder, write_file
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Chunk

CHUNK_BYTES_MAX = 64 << 20  # Maximum size of a chunk with several pieces; a larger piece has a chunk of its own.


class ChunkFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock_file = folder / "lock"
        make_folder(folder)
        self._put: set[Path] = set()  # Chunks that may not be on disk yet.

    def path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Share the lock while you write chunks. Inside the block, call `sync`, then add a manifest of the chunks."""
        with self._lock_file.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._put.clear()
            yield

    def put(self, pieces: Sequence[bytes]) -> Chunk:
        content = b"".join(pieces)
        chunk = Chunk(hashlib.sha256(content).hexdigest(), len(content))
        path = self.path(chunk.sha256)
        if not (path.exists() and path.read_bytes() == content):
            make_folder(path.parent)
            write_file(path, content, sync=False)
        self._put.add(path)  # This includes an existing chunk: its writer may have died before `sync`.
        return chunk

    def sync(self) -> None:
        for path in sorted(self._put):
            sync_file(path)
        for folder in sorted({path.parent for path in self._put}):
            sync_folder(folder)
        self._put.clear()

    def open(self, chunk: Chunk) -> memoryview:
        return map_file(self.path(chunk.sha256), chunk.size_bytes)

    def sweep(self, named: Callable[[], set[str]]) -> bool:
        with self._lock_file.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            kept = named()
            for path in self._folder.glob("??/*"):
                if path.name not in kept:
                    path.unlink()
        return True


class ChunkBuilder:
    def __init__(self, folder: ChunkFolder, bytes_max: int = CHUNK_BYTES_MAX) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._chunks: list[Chunk] = []
        self._holders: frozenset[int] = frozenset()
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def add(self, holders: frozenset[int], piece: bytes) -> tuple[int, int]:
        if self._pieces and (holders != self._holders or self._size_bytes + len(piece) > self._bytes_max):
            self._flush()
        self._holders = holders
        self._pieces.append(piece)
        offset = self._size_bytes
        self._size_bytes += len(piece)
        return len(self._chunks), offset

    def finish(self) -> tuple[Chunk, ...]:
        if self._pieces:
            self._flush()
        return tuple(self._chunks)

    def _flush(self) -> None:
        self._chunks.append(self._folder.put(self._pieces))
        self._pieces, self._size_bytes = [], 0


def map_file(path: Path, size_bytes: int) -> memoryview:
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped.
        raise TransferError(f"chunk {path} cannot be read ({error}); fetch the version again")
    if len(content) != size_bytes:
        raise TransferError(f"chunk {path} is {len(content)} bytes, expected {size_bytes}; fetch the version again")
    return content
