"""What a package of weights holds: one package is either an anchor (a whole version) or a delta between two.

Its tensors are cut into pieces, and pieces that the same receivers want lie one after the other in chunks, which go
by their SHA-256. A manifest is JSON in one canonical form, with its own SHA-256, so that no bit of it can change
unnoticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from rose.runtime.transfer.codec import Encoding
from rose.runtime.transfer.dtypes import bits_dtype, is_dtype
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.regions import Region, overlapping

_STEM = re.compile(r"(\d{8,})-(?:anchor|from-(\d{8,}))")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_XXH3 = re.compile(r"[0-9a-f]{32}")
#: Fields of the JSON that follow from the others.
_DERIVED = ("total_elements", "changed_elements", "manifest_sha256")


@dataclass(frozen=True, slots=True)
class Package:
    """The name of a package: it leads to `version`, from `base_version` or (an anchor) from nothing."""

    version: int
    base_version: int | None
    #: Size of its chunks together, for choosing the cheapest way to a version.
    blob_bytes: int = dataclasses.field(default=0, compare=False)

    @property
    def stem(self) -> str:
        """File name without suffix; `parse` reads it back."""
        origin = "anchor" if self.base_version is None else f"from-{self.base_version:08d}"
        return f"{self.version:08d}-{origin}"

    @classmethod
    def parse(cls, stem: str, blob_bytes: int = 0) -> Package | None:
        """The package a file name stands for, or None if it stands for none."""
        match = _STEM.fullmatch(stem)
        if match is None:
            return None
        return cls(int(match[1]), None if match[2] is None else int(match[2]), blob_bytes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A file of encoded pieces, named by what it holds; a receiver wants it whole or not at all."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A published tensor, whole."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceEntry:
    """One box of a tensor: where its encoded bytes lie in which chunk, and the XXH3-128 of what it turns into what.

    `shape` is that of the whole tensor; the box is `start <= index < stop`; hashes are of the box's bits in C order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    #: Index into the manifest's chunks, and the place in that chunk.
    chunk: int
    offset: int
    length: int
    encoding: Encoding
    changed: int
    base_xxh3: str | None
    result_xxh3: str

    @property
    def tensor(self) -> TensorInfo:
        """The tensor it is a box of."""
        return TensorInfo(self.name, self.dtype, self.shape)

    @property
    def region(self) -> Region:
        """The box."""
        return Region(self.start, self.stop)

    @property
    def elements(self) -> int:
        """Number of elements of the box."""
        return math.prod(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """Which piece of the version it is; pieces are in the order of their keys."""
        return self.name, self.start, self.stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A package: its chunks, and its pieces by name and place."""

    version: int
    base_version: int | None
    #: What the publisher's threads spent on comparing, encoding and checking, on all ranks together.
    encode_ns: int
    chunks: tuple[Chunk, ...]
    pieces: tuple[PieceEntry, ...]

    @property
    def package(self) -> Package:
        """The package this is the manifest of."""
        return Package(self.version, self.base_version, self.blob_bytes)

    @property
    def blob_bytes(self) -> int:
        """Size of all chunks; one that is named twice is stored and sent once."""
        return sum(chunk.size_bytes for chunk in set(self.chunks))

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors, by name."""
        return tuple(dict.fromkeys(piece.tensor for piece in self.pieces))

    def pieces_by_name(self) -> dict[str, list[PieceEntry]]:
        """The pieces of each tensor."""
        found: dict[str, list[PieceEntry]] = {}
        for piece in self.pieces:
            found.setdefault(piece.name, []).append(piece)
        return found

    @property
    def total_elements(self) -> int:
        """Elements of all tensors."""
        return sum(piece.elements for piece in self.pieces)

    @property
    def changed_elements(self) -> int:
        """Elements that differ from the base; all of them in an anchor."""
        return sum(piece.changed for piece in self.pieces)

    @property
    def dense_bytes(self) -> int:
        """Size of the whole version in memory."""
        return sum(piece.elements * bits_dtype(piece.dtype).itemsize for piece in self.pieces)

    @property
    def weights_sha256(self) -> str:
        """Identity of the weights, as this store cuts them: the same for a version however it was reached."""
        lines = (f"{p.name} {p.dtype} {list(p.shape)} {p.region} {p.result_xxh3}\n" for p in self.pieces)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def chunks_for(self, regions: Mapping[str, Region] | None) -> tuple[Chunk, ...]:
        """The chunks that a holder of these boxes needs (None: all), each once, in the manifest's order."""
        if regions is None:
            return tuple(dict.fromkeys(self.chunks))
        wanted = {p.chunk for p in self.pieces if p.name in regions and regions[p.name].intersect(p.region)}
        return tuple(dict.fromkeys(self.chunks[index] for index in sorted(wanted)))

    def to_bytes(self) -> bytes:
        """The canonical JSON: two manifests are equal exactly if these bytes are."""
        body: dict[str, Any] = {
            "version": self.version,
            "base_version": self.base_version,
            "encode_ns": self.encode_ns,
            "chunks": [_fields(chunk) for chunk in self.chunks],
            "pieces": [_fields(piece) for piece in self.pieces],
        }
        body["total_elements"] = self.total_elements
        body["changed_elements"] = self.changed_elements
        body["manifest_sha256"] = hashlib.sha256(_canonical(body)).hexdigest()
        return _canonical(body)

    @classmethod
    def from_bytes(cls, data: bytes, *, whole: bool = True) -> Manifest:
        """Parse and check; anything but the very bytes `to_bytes` makes of a sound manifest raises TransferError.

        Not `whole` is one trainer rank's part: its pieces need not cover the tensors.
        """
        try:
            body = json.loads(data)
            pieces = tuple(PieceEntry(**_with_tuples(piece, "shape", "start", "stop")) for piece in body["pieces"])
            chunks = tuple(Chunk(**chunk) for chunk in body["chunks"])
            fields = {key: value for key, value in body.items() if key not in _DERIVED}
            manifest = cls(**{**fields, "chunks": chunks, "pieces": pieces})
            manifest._check_types()
            # Whatever was altered, the bytes made anew differ from those received.
            intact = manifest.to_bytes() == data
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TransferError(f"manifest cannot be read ({type(error).__name__}: {error}); fetch it again")
        if not intact:
            raise TransferError(f"manifest of version {manifest.version} fails its own SHA-256; fetch it again")
        manifest.check(whole=whole)
        return manifest

    def check(self, *, whole: bool = True) -> None:
        """Raise TransferError unless pieces fill the chunks, lie inside their tensors, and (`whole`) make them up."""
        if whole and not self.pieces:
            raise TransferError(f"manifest of version {self.version} has no pieces")
        if self.base_version is not None and self.base_version >= self.version:
            raise TransferError(f"manifest: version {self.version} is not newer than its base {self.base_version}")
        for before, after in itertools.pairwise(self.pieces):
            if before.key >= after.key:
                raise TransferError(f"manifest: piece {after.key} does not come after {before.key}")
        for piece in self.pieces:
            self._check_piece(piece)
        self._check_chunks()
        for info, group in itertools.groupby(self.pieces, key=lambda piece: piece.tensor):
            _check_cover(info, [piece.region for piece in group], whole=whole)
        if len({info.name for info in self.tensors}) != len(self.tensors):
            raise TransferError(f"manifest of version {self.version} gives a tensor two dtypes or shapes")

    def _check_types(self) -> None:
        numbers = [self.version, self.encode_ns, *(chunk.size_bytes for chunk in self.chunks)]
        if self.base_version is not None:
            numbers.append(self.base_version)
        texts = [chunk.sha256 for chunk in self.chunks]
        for piece in self.pieces:
            numbers += [*piece.shape, *piece.start, *piece.stop]
            numbers += [piece.chunk, piece.offset, piece.length, piece.changed]
            texts += [piece.name, piece.dtype, piece.encoding, piece.result_xxh3]
            if piece.base_xxh3 is not None:
                texts.append(piece.base_xxh3)
        # A float or a bool of the same value would pass for a number here, and for another one elsewhere.
        odd: list[object] = [number for number in numbers if type(number) is not int or number < 0]
        odd += [text for text in texts if type(text) is not str]
        if odd:
            raise ValueError(f"{odd[0]!r} is not of the field's type")

    def _check_piece(self, piece: PieceEntry) -> None:
        where = f"manifest: tensor {piece.name!r} at {list(piece.start)}"
        if not is_dtype(piece.dtype):
            raise TransferError(f"{where} has dtype {piece.dtype!r}, which is not known")
        if not Region.whole(piece.shape).contains(piece.region):
            raise TransferError(f"{where} reaches to {list(piece.stop)}, out of its shape {list(piece.shape)}")
        dense_only = piece.base_xxh3 is None
        if dense_only != (self.base_version is None) or (dense_only and piece.encoding != "dense"):
            raise TransferError(f"{where} and version {self.version} disagree on the base")
        if piece.encoding not in get_args(Encoding) or piece.changed > piece.elements:
            raise TransferError(f"{where} has {piece.changed} of {piece.elements} elements in {piece.encoding!r}")
        if not all(_XXH3.fullmatch(value) for value in (piece.base_xxh3 or piece.result_xxh3, piece.result_xxh3)):
            raise TransferError(f"{where} has hashes that are none: {piece.base_xxh3}, {piece.result_xxh3}")

    def _check_chunks(self) -> None:
        filled = [0] * len(self.chunks)
        for piece in sorted(self.pieces, key=lambda piece: (piece.chunk, piece.offset)):
            if piece.chunk >= len(self.chunks):
                raise TransferError(f"manifest: tensor {piece.name!r} lies in chunk {piece.chunk} of {len(filled)}")
            if piece.offset != filled[piece.chunk] or piece.length <= 0:
                raise TransferError(
                    f"manifest: tensor {piece.name!r} at {list(piece.start)} lies at {piece.offset} of chunk "
                    f"{piece.chunk}, expected {filled[piece.chunk]}"
                )
            filled[piece.chunk] += piece.length
        for index, chunk in enumerate(self.chunks):
            if not _SHA256.fullmatch(chunk.sha256):
                raise TransferError(f"manifest: chunk {index} has {chunk.sha256!r} for its SHA-256")
            if chunk.size_bytes != filled[index]:
                raise TransferError(f"manifest: pieces fill {filled[index]} bytes of a chunk of {chunk.size_bytes}")


def merge_parts(parts: Sequence[Manifest]) -> Manifest:
    """The manifest of a package that several ranks wrote parts of.

    Raises TransferError if the parts are of different packages, overlap, or leave something of a tensor out.
    """
    ways = {(part.version, part.base_version) for part in parts}
    if len(ways) != 1:
        raise TransferError(f"parts lead from and to different versions: {sorted(ways, key=str)}; publish them again")
    pieces: list[PieceEntry] = []
    chunks: list[Chunk] = []
    for part in parts:
        pieces += (dataclasses.replace(piece, chunk=piece.chunk + len(chunks)) for piece in part.pieces)
        chunks += part.chunks
    merged = Manifest(
        version=parts[0].version,
        base_version=parts[0].base_version,
        encode_ns=sum(part.encode_ns for part in parts),
        chunks=tuple(chunks),
        pieces=tuple(sorted(pieces, key=lambda piece: piece.key)),
    )
    merged.check()
    return merged


def plan(packages: Iterable[Package], version: int, have: int | None) -> list[Package]:
    """The fewest bytes that lead from `have` (None: nothing) to `version`, in the order to apply.

    Raises TransferError if no package, or no chain of them, leads there.
    """
    ways: dict[int | None, tuple[int, list[Package]]] = {None: (0, [])}
    if have is not None:
        ways[have] = (0, [])
    known = sorted(packages, key=lambda package: package.version)
    for package in known:
        if package.base_version in ways and package.version != have:
            cost, way = ways[package.base_version]
            candidate = (cost + package.blob_bytes, [*way, package])
            if package.version not in ways or candidate[0] < ways[package.version][0]:
                ways[package.version] = candidate
    if version not in ways or not ways[version][1]:
        held = sorted({package.version for package in known})
        start = "nothing" if have is None else f"version {have}"
        raise TransferError(f"no way from {start} to version {version}: the store holds versions {held}")
    return ways[version][1]


def index_bytes(packages: Iterable[Package]) -> bytes:
    """The list of packages as JSON: an origin's `index.json`, and what `/v1/packages` answers."""
    return _canonical({"packages": [_fields(package) for package in packages]})


def read_index(data: bytes) -> list[Package]:
    """The packages that `index_bytes` listed. Raises TransferError for anything else."""
    try:
        packages = [Package(**item) for item in json.loads(data)["packages"]]
        if index_bytes(packages) != data or any(Package.parse(package.stem) != package for package in packages):
            raise ValueError("not in canonical form")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TransferError(f"this is not a list of packages ({error}); is it a weight store's?")
    return packages


def check_chain(manifests: Sequence[Manifest]) -> None:
    """Refuse a chain whose links do not meet: each must begin where the one before it ended, piece by piece.

    A piece that the next link cuts differently is left to `apply`, which hashes what it decodes from.
    """
    for before, after in itertools.pairwise(manifests):
        if after.base_version != before.version:
            raise TransferError(f"delta from version {after.base_version} cannot follow version {before.version}")
        if before.tensors != after.tensors:
            raise TransferError(f"versions {before.version} and {after.version} differ in names, dtypes or shapes")
        results = {piece.key: piece.result_xxh3 for piece in before.pieces}
        for piece in after.pieces:
            if (found := results.get(piece.key)) is not None and piece.base_xxh3 != found:
                raise TransferError(
                    f"tensor {piece.name!r} at {list(piece.start)}: delta to version {after.version} expects base "
                    f"{piece.base_xxh3}, version {before.version} is {found}"
                )


def _check_cover(info: TensorInfo, regions: list[Region], *, whole: bool) -> None:
    if both := overlapping(regions):
        raise TransferError(f"manifest: tensor {info.name!r} has pieces {both[0]} and {both[1]} that overlap")
    covered = sum(region.elements for region in regions)
    if whole and covered != info.elements:
        raise TransferError(f"manifest: pieces of {info.name!r} hold {covered} of its {info.elements} elements")


def _with_tuples(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**fields, **{name: tuple(fields[name]) for name in names}}


def _fields(entry: Package | Chunk | PieceEntry) -> dict[str, Any]:
    # dataclasses.asdict copies deeply, which takes most of the time to write a manifest.
    return {name: getattr(entry, name) for name in entry.__slots__}


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
