"""Manifests of packages. A package is an anchor (a whole version) or a delta. A file's first line has the SHA-256 of
the rest, and the signature. The rest is gzipped canonical JSON: `tail -n +2 FILE | gzip -d` shows it."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from rose.ledger.files import keys
from rose.ledger.files.keys import Key
from rose.transfer.codec.dtypes import NAMES, bits_dtype
from rose.transfer.codec.header import Encoding
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region, Regions, overlapping, tiles

_STEM = re.compile(r"(\d{8,19})-(?:anchor|from-(\d{8,19}))")
MANIFEST_BYTES_MAX = 64 << 20  # No model has a larger manifest, although hashes cannot be compressed.
#: The most bytes and the most values of an unpacked manifest: values take far more memory than their JSON. A piece of a
#: matrix has 58 values, so there is room for 400,000 pieces: 700 tensors on 570 ranks.
_BYTES_MAX, _VALUES_MAX = 160 << 20, 24_000_000
_BYTES_FREE, _RATIO_MAX = 4 << 20, 24
_VALUE_SIGNS = (b",", b"[", b'"')
_GZIP = 31  # zlib's gzip format.
_SEAL_BYTES_MAX = 64 + 1 + 128
_SIGNED = b"rose weights manifest "  # The prefix makes signatures of other documents by the same key invalid here.
INDEX_BYTES_MAX = 8 << 20  # A hundred thousand packages.

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(max_length=1024)]
Sha256 = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-f]{64}\Z")]
_Xxh3 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
_Place = Annotated[tuple[Number, ...], msgspec.Meta(max_length=16)]


@dataclass(frozen=True, slots=True)
class Package:
    """The name of a package that leads from `base_version` to `version`. A package without a base is an anchor."""

    version: Number
    base_version: Number | None
    blob_bytes: Number = dataclasses.field(default=0, compare=False)  # Size of all chunks; `plan` minimises it.
    run_id: Name = dataclasses.field(default="", compare=False)  # The RL run that published it; "" without a run.

    @property
    def stem(self) -> str:
        origin = "anchor" if self.base_version is None else f"from-{self.base_version:08d}"
        return f"{self.version:08d}-{origin}"

    @classmethod
    def parse(cls, stem: str) -> Package | None:
        if (match := _STEM.fullmatch(stem)) is None:
            return None
        return cls(int(match[1]), None if match[2] is None else int(match[2]))


@dataclass(frozen=True, slots=True)
class Chunk:
    sha256: Sha256
    size_bytes: Number


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    dtype: str
    shape: tuple[int, ...]  # Shape of the whole published tensor.

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceEntry:
    """A box of a tensor, the place of its encoded bytes, and the XXH3-128 hashes of the base and of the result."""

    name: Name
    dtype: Name
    shape: _Place
    start: _Place
    stop: _Place
    chunk: Number  # Index into the manifest's chunks; `offset` and `length` are bytes in that chunk.
    offset: Number
    length: Number
    encoding: Encoding
    changed: Number
    base_xxh3: _Xxh3 | None
    result_xxh3: _Xxh3

    @property
    def tensor(self) -> TensorInfo:
        return TensorInfo(self.name, self.dtype, self.shape)

    @property
    def region(self) -> Region:
        return Region(self.start, self.stop)

    @property
    def elements(self) -> int:
        return math.prod(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return self.name, self.start, self.stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    version: Number
    base_version: Number | None
    encode_ns: Number  # Thread time of all ranks together, to compare, encode and check.
    chunks: tuple[Chunk, ...]
    pieces: tuple[PieceEntry, ...]
    run_id: Name = ""  # The RL run that published it; "" without a run.

    @property
    def package(self) -> Package:
        return Package(self.version, self.base_version, self.blob_bytes, self.run_id)

    @property
    def blob_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in set(self.chunks))

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return tuple(dict.fromkeys(piece.tensor for piece in self.pieces))

    def pieces_by_name(self) -> dict[str, list[PieceEntry]]:
        entries: dict[str, list[PieceEntry]] = {}
        for piece in self.pieces:
            entries.setdefault(piece.name, []).append(piece)
        return entries

    @property
    def total_elements(self) -> int:
        return sum(piece.elements for piece in self.pieces)

    @property
    def changed_elements(self) -> int:
        return sum(piece.changed for piece in self.pieces)

    @property
    def dense_bytes(self) -> int:
        return sum(piece.elements * bits_dtype(piece.dtype).itemsize for piece in self.pieces)

    @property
    def weights_sha256(self) -> str:
        """Return a digest of the weights. It is the same for every chain of packages that leads to them."""
        lines = (f"{p.name} {p.dtype} {list(p.shape)} {p.region} {p.result_xxh3}\n" for p in self.pieces)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def chunks_for(self, regions: Regions | None) -> tuple[Chunk, ...]:
        """Return the chunks that a holder of `regions` needs (None: all chunks), without repetitions."""
        if regions is None:
            return tuple(dict.fromkeys(self.chunks))
        indices = {p.chunk for p in self.pieces if p.name in regions and regions[p.name].intersect(p.region)}
        return tuple(dict.fromkeys(self.chunks[index] for index in sorted(indices)))

    def to_bytes(self, key: Key | None = None) -> bytes:
        """Return the content of the manifest's file, signed if `key` is given. Its bytes depend on zlib's version."""
        packed = zlib.compress(msgspec.json.encode(self), level=6, wbits=_GZIP)
        seal = _sha256(packed)
        return seal + (b"" if key is None else b" " + key.sign(_SIGNED + seal).encode()) + b"\n" + packed

    @classmethod
    def from_bytes(cls, data: bytes, *, whole: bool = True, signer: str | None = None) -> Manifest:
        """Parse and check a manifest that `signer` must have signed (None: not checked). If not `whole`, the manifest
        is one rank's part. Raises TransferError."""
        end = data.find(b"\n", 0, _SEAL_BYTES_MAX + 1)
        seal, _, signature = data[: max(end, 0)].partition(b" ")
        packed = data[end + 1 :]
        if len(data) > MANIFEST_BYTES_MAX or seal != _sha256(packed):
            raise TransferError(f"manifest of {len(data)} bytes fails its own SHA-256; fetch it again")
        if signer is not None and not keys.check(signer, _SIGNED + seal, signature.decode("latin-1")):
            raise TransferError(
                f"manifest {seal.decode()} is {'signed by another key' if signature else 'not signed'}, expected the "
                f"signature of {signer}: another publisher wrote it"
            )
        try:
            # Each piece has a hash, which cannot be compressed: a small file that unpacks to a large one is forged.
            content = unpack(packed, min(_BYTES_MAX, _BYTES_FREE + _RATIO_MAX * len(packed)))
            manifest = msgspec.json.decode(content, type=cls)
            if msgspec.json.encode(manifest) != content:
                raise ValueError("not in canonical form")
        except ValueError as error:
            raise TransferError(f"manifest cannot be read ({error}); fetch it again")
        check_sound(manifest, whole=whole)
        return manifest


def check_sound(manifest: Manifest, *, whole: bool) -> None:
    if whole and not manifest.pieces:
        raise TransferError(f"manifest of version {manifest.version} has no pieces")
    if manifest.base_version is not None and manifest.base_version >= manifest.version:
        raise TransferError(f"manifest: version {manifest.version} is not newer than its base {manifest.base_version}")
    for before, after in itertools.pairwise(manifest.pieces):
        if before.key >= after.key:
            raise TransferError(f"manifest: piece {after.key} does not come after {before.key}")
    for piece in manifest.pieces:
        _check_piece(manifest, piece)
    _check_chunks(manifest)
    for info, group in itertools.groupby(manifest.pieces, key=lambda piece: piece.tensor):
        regions = [piece.region for piece in group]
        if whole and not tiles(Region.whole(info.shape), regions):
            covered = sum(region.elements for region in regions)
            raise TransferError(
                f"manifest: pieces of {info.name!r} hold {covered} of its {info.elements} elements, or overlap"
            )
        if not whole and (both := overlapping(regions)):
            raise TransferError(f"manifest: tensor {info.name!r} has pieces {both[0]} and {both[1]} that overlap")
    if len({info.name for info in manifest.tensors}) != len(manifest.tensors):
        raise TransferError(f"manifest of version {manifest.version} gives a tensor two dtypes or shapes")


def _check_piece(manifest: Manifest, piece: PieceEntry) -> None:
    where = f"manifest: tensor {piece.name!r} at {list(piece.start)}"
    if piece.dtype not in NAMES:
        raise TransferError(f"{where} has dtype {piece.dtype!r}, which is not known")
    if not Region.whole(piece.shape).contains(piece.region):
        raise TransferError(f"{where} reaches to {list(piece.stop)}, beyond its shape {list(piece.shape)}")
    dense_only = piece.base_xxh3 is None
    if dense_only != (manifest.base_version is None) or (dense_only and piece.encoding != "dense"):
        raise TransferError(f"{where} and version {manifest.version} disagree on the base")
    if piece.changed > piece.elements:
        raise TransferError(f"{where} has {piece.changed} of {piece.elements} elements changed")


def _check_chunks(manifest: Manifest) -> None:
    filled = [0] * len(manifest.chunks)
    for piece in manifest.pieces:  # The pieces of a chunk lie in order, so the order gives their offsets.
        if piece.chunk >= len(manifest.chunks):
            raise TransferError(f"manifest: tensor {piece.name!r} is in chunk {piece.chunk}, not below {len(filled)}")
        if piece.offset != filled[piece.chunk] or piece.length <= 0:
            raise TransferError(f"manifest: piece {piece.key} is at byte {piece.offset}, not {filled[piece.chunk]}")
        filled[piece.chunk] += piece.length
    for index, chunk in enumerate(manifest.chunks):
        if chunk.size_bytes != filled[index]:
            raise TransferError(f"manifest: pieces fill {filled[index]} bytes of a chunk of {chunk.size_bytes}")


def _sha256(packed: bytes) -> bytes:
    return hashlib.sha256(packed).hexdigest().encode()


def unpack(packed: bytes, bytes_max: int = _BYTES_MAX, values_max: int = _VALUES_MAX) -> bytes:
    """Return the JSON in gzip data. Raises ValueError if it has more than `bytes_max` bytes or `values_max` values."""
    unpacking = zlib.decompressobj(_GZIP)
    content, values = bytearray(), 0
    try:
        while not unpacking.eof and (part := unpacking.decompress(packed, 4 << 20)):
            packed = unpacking.unconsumed_tail
            content += part
            values += sum(map(part.count, _VALUE_SIGNS))
            if len(content) > bytes_max or values > values_max:
                raise ValueError(f"packed data hold more than {bytes_max} bytes or {values_max} values")
    except zlib.error as error:
        raise ValueError(f"packed data cannot be read ({error})")
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"packed data do not end after {len(content)} bytes")
    return bytes(content)


def check_version(version: int) -> None:
    if type(version) is not int or not 0 <= version < 2**63:
        raise TransferError(f"version is {version!r}, expected a whole number from 0 to 2**63 - 1")


def merge_parts(parts: Sequence[Manifest]) -> Manifest:
    if len(runs := {part.run_id for part in parts}) != 1:
        raise TransferError(f"parts are of different runs: {sorted(runs)}; give each run a folder of its own")
    ways = {(part.version, part.base_version) for part in parts}
    if len(ways) != 1:
        raise TransferError(f"parts have different versions: {sorted(ways, key=str)} (version, base); publish again")
    pieces: list[PieceEntry] = []
    chunks: list[Chunk] = []
    for part in parts:
        pieces += (dataclasses.replace(piece, chunk=piece.chunk + len(chunks)) for piece in part.pieces)
        chunks += part.chunks
    pieces.sort(key=lambda piece: piece.key)
    encode_ns = sum(part.encode_ns for part in parts)
    merged = dataclasses.replace(parts[0], encode_ns=encode_ns, chunks=tuple(chunks), pieces=tuple(pieces))
    check_sound(merged, whole=True)
    return merged


def plan(packages: Iterable[Package], version: int, have: int | None) -> list[Package]:
    """Return the chain of packages to `version` that has the fewest bytes. It starts from the version `have`, or from
    an anchor, which needs no base. Raises TransferError if there is no such chain."""
    costs: dict[int | None, int] = {None: 0, have: 0}
    last: dict[int, Package] = {}
    known = sorted(packages, key=lambda package: package.version)
    for package in known:
        if package.base_version in costs and package.version != have:
            cost = costs[package.base_version] + package.blob_bytes
            if package.version not in costs or cost < costs[package.version]:
                costs[package.version], last[package.version] = cost, package
    if version not in last:
        held = sorted({package.version for package in known})
        start = "nothing" if have is None else f"version {have}"
        raise TransferError(f"no way from {start} to version {version}: the store holds versions {held}")
    way = [last[version]]
    while (begins := way[-1].base_version) is not None and begins != have:
        way.append(last[begins])
    return way[::-1]


def index_bytes(packages: Iterable[Package]) -> bytes:
    return msgspec.json.encode({"packages": list(packages)})


def read_index(data: bytes) -> list[Package]:
    try:
        if len(data) > INDEX_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes, but a list has at most {INDEX_BYTES_MAX}")
        packages = msgspec.json.decode(data, type=dict[str, list[Package]])["packages"]
        if index_bytes(packages) != data:
            raise ValueError("not in canonical form")
    except (ValueError, LookupError) as error:
        raise TransferError(f"this is not a list of packages ({error}); is this a weight store?")
    return packages


def check_chain(manifests: Sequence[Manifest]) -> None:
    for before, after in itertools.pairwise(manifests):
        if after.base_version != before.version:
            raise TransferError(f"delta from version {after.base_version} cannot follow version {before.version}")
        if after.run_id != before.run_id:
            raise TransferError(f"a delta of run {after.run_id!r} cannot follow a version of run {before.run_id!r}")
        if before.tensors != after.tensors:
            raise TransferError(f"versions {before.version} and {after.version} differ in names, dtypes or shapes")
        results = {piece.key: piece.result_xxh3 for piece in before.pieces}
        for piece in after.pieces:
            if (result_xxh3 := results.get(piece.key)) is not None and piece.base_xxh3 != result_xxh3:
                raise TransferError(f"piece {piece.key} needs base {piece.base_xxh3}, but {result_xxh3} comes before")
