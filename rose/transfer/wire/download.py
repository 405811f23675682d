"""Downloads one chunk to a file. A download is retried, resumed and checked. Its only state is the file."""

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Chunk
from rose.transfer.wire.origin import BrokenError, Origin

_Result = TypeVar("_Result")


def download(
    origin: Origin,
    chunk: Chunk,
    path: Path,
    *,
    retries: int,
    stopped: threading.Event,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Download a chunk to `path`, or only the rest if its beginning is there. `progress` gets the number of bytes that
    may be passed on. Until the hash is checked, the number excludes the last byte. Raises TransferError."""
    try:
        for _ in range(2):
            if (actual := _pull(origin, chunk, path, retries, stopped, progress)) == chunk.sha256:
                progress(chunk.size_bytes)
                return
            path.unlink()
    except OSError as error:
        raise TransferError(f"cannot write chunk {chunk.sha256} to {path}: {error.strerror}; is there room?")
    raise TransferError(f"chunk {chunk.sha256} at {origin.url} is damaged: it twice had SHA-256 {actual}")


def persist(call: Callable[[], _Result], retries: int, stopped: threading.Event | None = None) -> _Result:
    """Return the result of `call`. Retry it after a BrokenError, at most `retries` times and until `stopped` is set."""
    stopped = stopped or threading.Event()
    for failures in range(retries):
        try:
            return call()
        except BrokenError:
            if stopped.wait(backoff_s(failures)):
                raise
    return call()


def backoff_s(failures: int) -> float:
    return min(0.1 * 2.0 ** min(failures, 30), 5.0)


def _pull(
    origin: Origin, chunk: Chunk, path: Path, retries: int, stopped: threading.Event, progress: Callable[[int], None]
) -> str:
    sha256 = hashlib.sha256()

    def tell(have: int) -> None:
        progress(min(have, chunk.size_bytes - 1))

    with path.open("a+b") as file:
        file.seek(0)
        have = failures = 0
        while block := file.read(1 << 20):
            sha256.update(block)
            have += len(block)
        while have < chunk.size_bytes:
            before = have
            tell(have)
            try:
                for received in origin.read_chunk(chunk, have):
                    file.write(received)
                    file.flush()  # A kill then loses no received byte, and a relay's clients can read it.
                    sha256.update(received)
                    have += len(received)
                    tell(have)
                    if stopped.is_set():
                        raise BrokenError(f"the transfer of chunk {chunk.sha256} was stopped at byte {have}")
            except BrokenError:
                failures = 0 if have > before else failures + 1
                if failures > retries or stopped.wait(backoff_s(failures)):
                    raise
    return sha256.hexdigest()
