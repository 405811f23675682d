"""A forged manifest or index takes little memory, and that of a large model is read."""

import hashlib
import itertools
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import INDEX_BYTES_MAX, Chunk, Manifest, read_index
from tests.transfer.made_manifests import manifest, piece


def peak_mib() -> int:
    peak_kib = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert peak_kib is not None
    return int(peak_kib[1]) >> 10


def read_in_a_process(read: Callable[[bytes], object], data: bytes, folder: Path) -> tuple[str, int]:
    """Whether a manifest or an index is read, and how much more memory that takes at most, in MiB."""
    answer = folder / "answer"
    child = os.fork()
    if child == 0:
        # The peak of a forked process begins at what it shares with its parent.
        before_mib = peak_mib()
        try:
            read(data)
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
    packed = zlib.compress(content, 6, 31)
    return hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def with_pieces(piece: bytes, size_bytes: int) -> bytes:
    pieces = b"[" + piece + (b"," + piece) * (size_bytes // (len(piece) + 1)) + b"]"
    return b'{"version":1,"base_version":null,"encode_ns":0,"run_id":"","chunks":[],"pieces":' + pieces + b"}"


def index_of(value: bytes) -> bytes:
    return b'{"packages":[' + value + (b"," + value) * (INDEX_BYTES_MAX // (len(value) + 1) - 20) + b"]}"


def grid_of(axes: int) -> Manifest:
    starts = list(itertools.product((0, 1), repeat=axes))
    pieces = tuple(
        piece("b", start, tuple(at + 1 for at in start), shape=(2,) * axes, offset=40 * number, length=40, changed=1)
        for number, start in enumerate(starts)
    )
    chunks = (Chunk("a" * 64, 40 * len(starts)),)
    return Manifest(version=3, base_version=2, encode_ns=1, chunks=chunks, pieces=pieces)


MANY = 12 << 20
PIECE = msgspec.json.encode(manifest().pieces[0])
#: What is read, and the most MiB that it may take.
BOMBS: dict[str, tuple[Callable[[bytes], object], Callable[[], bytes], int]] = {
    "depth": (Manifest.from_bytes, lambda: forged(b"[" * MANY), 120),
    "pieces": (Manifest.from_bytes, lambda: forged(with_pieces(PIECE, MANY)), 120),
    "axes": (
        Manifest.from_bytes,
        lambda: forged(with_pieces(PIECE.replace(b"[4,8]", b"[" + b"9," * (MANY // 2) + b"9]", 1), 1)),
        120,
    ),
    "hash": (Manifest.from_bytes, lambda: forged(with_pieces(PIECE.replace(b"1" * 32, b"ab " * (MANY // 3)), 1)), 120),
    # 160 MB of pieces are packed in 600 kB, and each of a grid's boxes lies beside 4095 others.
    "many alike": (Manifest.from_bytes, lambda: forged(with_pieces(PIECE, 155 << 20)), 120),
    "a grid": (Manifest.from_bytes, lambda: grid_of(12).to_bytes(), 120),
    "a line without an end": (Manifest.from_bytes, lambda: b"[[]," * (1 << 20), 50),
    "an index of lists": (read_index, lambda: index_of(b"[]"), 100),
    "an index of versions": (read_index, lambda: index_of(b'{"version":1}'), 100),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_forged_manifest_or_index_takes_little_memory(bomb: str, tmp_path: Path) -> None:
    read, make, mib_max = BOMBS[bomb]
    outcome, mib = read_in_a_process(read, make(), tmp_path)
    assert (outcome, mib < mib_max) == ("refused", True), mib


def large(tensors: int, ranks: int) -> Manifest:
    """Of matrices, each cut for so many ranks, as a model of 70 billion weights has them."""
    rows, columns, length = 8192, 12288, 1 << 20
    step = rows // ranks
    plain = {"shape": (rows, columns), "length": length, "changed": step * columns, "base_xxh3": None}
    pieces = tuple(
        piece(
            f"model.layers.{number:05d}.mlp.down_proj.weight",
            (rank * step, 0),
            (rank * step + step, columns),
            chunk=number,
            offset=rank * length,
            result_xxh3=f"{number * ranks + rank:032x}",
            **plain,
        )
        for number in range(tensors)
        for rank in range(ranks)
    )
    chunks = tuple(Chunk(f"{number:064x}", ranks * length) for number in range(tensors))
    return Manifest(version=0, base_version=None, encode_ns=1, chunks=chunks, pieces=pieces)


def test_the_manifest_of_a_large_model_is_read() -> None:
    whole = large(30, 64)
    assert Manifest.from_bytes(whole.to_bytes()) == whole
