"""A manifest small enough to see through, and others that differ from it in a field."""

from dataclasses import replace
from typing import Any

from rose.transfer.package.manifest import Chunk, Manifest, PieceEntry

A, B, C = "a" * 64, "b" * 64, "c" * 64


def piece(name: str, start: tuple[int, ...], stop: tuple[int, ...], **fields: Any) -> PieceEntry:
    values: Any = {"dtype": "bfloat16", "shape": (4, 8), "chunk": 0, "offset": 0, "length": 50, "encoding": "dense"}
    values |= {"changed": 5, "base_xxh3": "0" * 32, "result_xxh3": "1" * 32}
    return PieceEntry(name=name, start=start, stop=stop, **(values | fields))


def manifest(version: int = 3, base: int | None = 2) -> Manifest:
    """`a` in two halves of its columns, for two ranks, `b` whole, for both."""
    pieces: tuple[PieceEntry, ...] = (
        piece("a", (0, 0), (4, 4), chunk=0),
        piece("a", (0, 4), (4, 8), chunk=1, length=60),
        piece("b", (0, 0), (4, 8), chunk=2, length=40),
        piece("c", (0,), (7,), shape=(7,), chunk=2, offset=40, length=40, dtype="float32"),
    )
    chunks = (Chunk(A, 50), Chunk(B, 60), Chunk(C, 80))
    if base is None:
        pieces = tuple(replace(p, base_xxh3=None, changed=p.elements) for p in pieces)
    return Manifest(version=version, base_version=base, encode_ns=7, chunks=chunks, pieces=pieces)


def with_piece(index: int, **fields: Any) -> Manifest:
    good = manifest()
    pieces = list(good.pieces)
    pieces[index] = replace(pieces[index], **fields)
    return replace(good, pieces=tuple(pieces))
