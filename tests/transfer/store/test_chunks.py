import hashlib
import os
from pathlib import Path

import pytest

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Chunk
from rose.transfer.store.chunks import ChunkBuilder, ChunkFolder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("??/*")}


def test_a_chunk_goes_by_its_hash_and_is_stored_once(tmp_path: Path) -> None:
    folder = ChunkFolder(tmp_path)
    chunk = folder.put([b"pie", b"ces"])
    assert chunk == Chunk(hashlib.sha256(b"pieces").hexdigest(), 6)
    assert folder.path(chunk.sha256) == tmp_path / chunk.sha256[:2] / chunk.sha256
    before = folder.path(chunk.sha256).stat()
    assert folder.put([b"pie", b"ces"]) == chunk
    assert folder.path(chunk.sha256).stat().st_ino == before.st_ino
    assert bytes(folder.open(chunk)) == b"pieces"
    assert names(tmp_path) == {chunk.sha256}


def test_a_chunk_that_is_damaged_or_missing_is_not_opened(tmp_path: Path) -> None:
    folder = ChunkFolder(tmp_path)
    chunk = folder.put([b"pie", b"ces"])
    path = folder.path(chunk.sha256)
    path.write_bytes(b"piece")
    with pytest.raises(TransferError, match="is 5 bytes, expected 6"):
        folder.open(chunk)
    assert folder.put([b"pie", b"ces"]) == chunk
    assert bytes(folder.open(chunk)) == b"pieces"
    path.write_bytes(b"")
    with pytest.raises(TransferError, match="cannot be read"):
        folder.open(chunk)
    path.unlink()
    with pytest.raises(TransferError, match="cannot be read"):
        folder.open(chunk)


def test_what_nobody_names_goes_but_not_while_somebody_writes(tmp_path: Path) -> None:
    folder, other = ChunkFolder(tmp_path), ChunkFolder(tmp_path)
    kept, gone = folder.put([b"kept"]), folder.put([b"gone"])
    (tmp_path / "ab").mkdir(exist_ok=True)
    (tmp_path / "ab" / ".abc.77.tmp").write_bytes(b"left by a process that was killed")
    with folder.writing(), other.writing():
        assert not other.sweep(lambda: {kept.sha256})
        assert not folder.sweep(set)
        assert len(names(tmp_path)) == 3
    child = os.fork()
    if child == 0:
        with folder.writing():
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert other.sweep(lambda: {kept.sha256})
    assert names(tmp_path) == {kept.sha256}
    assert gone.sha256 not in names(tmp_path)


def test_pieces_lie_together_as_receivers_want_them(tmp_path: Path) -> None:
    builder = ChunkBuilder(ChunkFolder(tmp_path), bytes_max=100)
    one, both = frozenset({0}), frozenset({0, 1})
    sizes = [(one, 60), (one, 40), (one, 1), (both, 1), (both, 250), (both, 1)]
    contents = [bytes([index]) * size for index, (_, size) in enumerate(sizes)]
    places = [builder.add(holders, content) for (holders, _), content in zip(sizes, contents, strict=True)]
    assert places == [(0, 0), (0, 60), (1, 0), (2, 0), (3, 0), (4, 0)]
    made = builder.finish()
    assert [chunk.size_bytes for chunk in made] == [100, 1, 1, 250, 1]
    folder = ChunkFolder(tmp_path)
    for (index, offset), content in zip(places, contents, strict=True):
        assert bytes(folder.open(made[index])[offset : offset + len(content)]) == content
    assert ChunkBuilder(folder).finish() == ()
