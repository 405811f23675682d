"""The chunks that a relay keeps on disk, up to a budget in bytes. A complete file has the right hash."""

import asyncio
import fcntl
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rose.transfer.errors import TransferError

_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class _Entry:
    size_bytes: int
    complete: bool = False
    holds: int = 0  # Number of users now.


class ChunkCache:
    """Chunks in `folder`, for one thread. Raises TransferError if another process uses the folder."""

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        if budget_bytes <= 0:
            raise ValueError(f"budget_bytes is {budget_bytes}, expected more than 0")
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise TransferError(f"{folder} is the cache of another running relay; give each relay its own folder")
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # By SHA-256, the least recently used first.
        self._freed = asyncio.Event()
        stored = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        for path in sorted(stored, key=lambda path: path.stat().st_mtime_ns):
            self._add(path.name, _Entry(path.stat().st_size))
        self._make_room(0)

    def __contains__(self, sha256: str) -> bool:
        entry = self._entries.get(sha256)
        return entry is not None and entry.complete

    def path(self, sha256: str) -> Path:
        return self._folder / sha256

    @contextmanager
    def held(self, sha256: str) -> Iterator[None]:
        entry = self._entries[sha256]
        self._entries.move_to_end(sha256)
        entry.holds += 1
        try:
            yield
        finally:
            entry.holds -= 1
            self._freed.set()

    async def reserve(self, sha256: str, size_bytes: int) -> None:
        """Wait for room for a download, and reserve that room. Raises TransferError if the budget is too small."""
        if size_bytes > self.budget_bytes:
            raise TransferError(f"chunk {sha256} is {size_bytes} bytes: raise the relay's budget ({self.budget_bytes})")
        left = self._entries.pop(sha256, None)  # The file of an earlier download stays, to be resumed.
        self.used_bytes -= 0 if left is None else left.size_bytes
        while not self._make_room(size_bytes):
            self._freed.clear()
            await self._freed.wait()
        self._add(sha256, _Entry(size_bytes, holds=1))

    def finish(self, sha256: str, *, complete: bool) -> None:
        entry = self._entries[sha256]
        entry.holds -= 1
        entry.complete = complete
        if not complete:
            path = self.path(sha256)
            size_bytes = path.stat().st_size if path.exists() else 0
            self.used_bytes += size_bytes - entry.size_bytes
            entry.size_bytes = size_bytes
        self._freed.set()

    def close(self) -> None:
        self._lock.close()

    def _add(self, sha256: str, entry: _Entry) -> None:
        self._entries[sha256] = entry
        self.used_bytes += entry.size_bytes

    def _make_room(self, size_bytes: int) -> bool:
        for sha256, entry in list(self._entries.items()):
            if self.used_bytes + size_bytes <= self.budget_bytes:
                break
            if not entry.holds:
                self.path(sha256).unlink(missing_ok=True)
                self.used_bytes -= entry.size_bytes
                del self._entries[sha256]
        return self.used_bytes + size_bytes <= self.budget_bytes
