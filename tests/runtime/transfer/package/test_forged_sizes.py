"""A forged manifest or index takes little memory, and that of a large model is read."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import INDEX_BYTES_MAX, Chunk, Manifest, PieceEntry, read_index
from tests.runtime.transfer.made_manifests import manifest

#: Beyond what the process has before it reads.
MIB_MAX = 120
READERS: dict[str, Callable[[bytes], object]] = {"manifest": Manifest.from_bytes, "index": read_index}


def peak_mib() -> int:
    peak_kib = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert peak_kib is not None
    return int(peak_kib[1]) >> 10


def read_in_a_process(kind: str, data: bytes, folder: Path) -> tuple[str, int]:
    """Whether a manifest or an index is read, and how much memory that takes at most, in MiB."""
    answer = folder / "answer"
    child = os.fork()
    if child == 0:
        # The peak of a forked process begins at what it shares with its parent.
        before_mib = peak_mib()
        try:
            READERS[kind](data)
            outcome = "read"
        except TransferError:
            outcome = "refused"
        except BaseException as error:
            outcome = type(error).__name__
        answer.write_text(f"{outcome} {peak_mib() - before_mib}")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    outcome, mib = answer.read_text().split()
    return outcome, int(mib)


def forged(content: bytes) -> bytes:
    """A manifest's file with this content, and the SHA-256 that fits."""
    packed = zlib.compress(content, 6, 31)
    return hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def with_pieces(piece: bytes, size_bytes: int) -> bytes:
    """A manifest of so many bytes with as many pieces of this JSON."""
    pieces = b"[" + piece + (b"," + piece) * (size_bytes // (len(piece) + 1)) + b"]"
    return b'{"version":1,"base_version":null,"encode_ns":0,"run_id":"","chunks":[],"pieces":' + pieces + b"}"


MANY = 12 << 20
PIECE = msgspec.json.encode(manifest().pieces[0])
BOMBS = {
    "depth": lambda: b"[" * MANY,
    "pieces": lambda: with_pieces(PIECE, MANY),
    "axes": lambda: with_pieces(PIECE.replace(b"[4,8]", b"[" + b"9," * (MANY // 2) + b"9]", 1), 1),
    "hash": lambda: with_pieces(PIECE.replace(b"1" * 32, b"ab " * (MANY // 3)), 1),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_manifest_that_holds_much_takes_little_memory(bomb: str, tmp_path: Path) -> None:
    data = forged(BOMBS[bomb]())
    assert len(data) < 1 << 20
    outcome, mib = read_in_a_process("manifest", data, tmp_path)
    assert (outcome, mib < MIB_MAX) == ("refused", True), mib


@pytest.mark.parametrize("value", [b"[]", b'{"version":1}'])
def test_an_index_that_is_none_takes_little_memory(value: bytes, tmp_path: Path) -> None:
    data = b'{"packages":[' + value + (b"," + value) * (INDEX_BYTES_MAX // (len(value) + 1) - 20) + b"]}"
    outcome, mib = read_in_a_process("index", data, tmp_path)
    assert (outcome, mib < 100) == ("refused", True), mib


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    outcome, mib = read_in_a_process("manifest", b"[[]," * (1 << 20), tmp_path)
    assert (outcome, mib < 50) == ("refused", True), mib


def large(tensors: int, ranks: int) -> Manifest:
    """Of matrices, each cut for so many ranks, as a model of 70 billion weights has them."""
    rows, columns, length = 8192, 12288, 1 << 20
    step = rows // ranks
    pieces = tuple(
        PieceEntry(
            name=f"model.layers.{number:05d}.mlp.down_proj.weight",
            dtype="bfloat16",
            shape=(rows, columns),
            start=(rank * step, 0),
            stop=(rank * step + step, columns),
            chunk=number,
            offset=rank * length,
            length=length,
            encoding="dense",
            changed=step * columns,
            base_xxh3=None,
            result_xxh3=f"{number * ranks + rank:032x}",
        )
        for number in range(tensors)
        for rank in range(ranks)
    )
    chunks = tuple(Chunk(f"{number:064x}", ranks * length) for number in range(tensors))
    return Manifest(version=0, base_version=None, encode_ns=1, chunks=chunks, pieces=pieces)


def test_the_manifest_of_a_large_model_is_read() -> None:
    whole = large(30, 64)
    assert Manifest.from_bytes(whole.to_bytes()) == whole
