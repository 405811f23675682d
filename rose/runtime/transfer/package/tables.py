"""Tables of columns as JSON, packed: what is alike lies side by side, and hashes one after the other."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from rose.runtime.transfer.codec.header import Encoding

#: What the line before the tables may have.
_HEAD_BYTES_MAX = 8192
#: Larger than the manifest of any model, whose hashes cannot be compressed.
MANIFEST_BYTES_MAX = 64 << 20
#: Those of a hundred billion weights on a thousand ranks take two thirds of it.
BYTES_MAX = 160 << 20
#: Numbers, texts and lists take far more memory than their JSON. A piece of a matrix is 15 of them, so this is 800,000
#: pieces: 700 tensors on a thousand ranks.
_VALUES_MAX = 12_000_000
_VALUE_SIGNS = (b",", b"[", b'"')
_BLOCK_BYTES = 4 << 20
_LEVEL = 6
#: What zlib calls the gzip format, which every host can unpack.
_GZIP = 31

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Numbers = Annotated[list[Number], msgspec.Meta(max_length=_VALUES_MAX)]
_Place = Annotated[tuple[Number, ...], msgspec.Meta(max_length=16)]
_Places = Annotated[list[_Place], msgspec.Meta(max_length=_VALUES_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=1024)]
_Names = Annotated[list[Name], msgspec.Meta(max_length=_VALUES_MAX)]
_Hashes = Annotated[str, msgspec.Meta(max_length=BYTES_MAX)]


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """The line before the tables of a manifest."""

    version: Number
    base_version: Number | None
    encode_ns: Number
    blob_bytes: Number
    total_elements: Number
    changed_elements: Number
    manifest_sha256: Name
    run_id: Name


class _Chunks(msgspec.Struct, forbid_unknown_fields=True):
    sha256: _Hashes
    size_bytes: _Numbers


class _Tensors(msgspec.Struct, forbid_unknown_fields=True):
    name: _Names
    dtype: _Names
    shape: _Places


class _Pieces(msgspec.Struct, forbid_unknown_fields=True):
    tensor: _Numbers
    start: _Places
    stop: _Places
    chunk: _Numbers
    length: _Numbers
    encoding: Annotated[list[Encoding], msgspec.Meta(max_length=_VALUES_MAX)]
    changed: _Numbers
    base_xxh3: _Hashes
    result_xxh3: _Hashes


class Tables(msgspec.Struct, forbid_unknown_fields=True):
    """The tables of a manifest. What has another form is refused while it is read, and takes no memory."""

    chunks: _Chunks
    tensors: _Tensors
    pieces: _Pieces

    @classmethod
    def read(cls, content: bytes) -> Tables:
        """Raises ValueError."""
        return msgspec.json.decode(content, type=cls)


def canonical(body: Mapping[str, Any]) -> bytes:
    """The one JSON for these values."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def columns(entries: Sequence[object], names: Sequence[str], hashes: Sequence[str]) -> dict[str, Any]:
    """A column for each of these attributes; `hashes`, which may be None, become one text."""
    table: dict[str, Any] = {name: [getattr(entry, name) for entry in entries] for name in names}
    for name in hashes:
        table[name] = " ".join(getattr(entry, name) or "-" for entry in entries)
    return table


def rows(table: msgspec.Struct, names: Sequence[str], hashes: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of `names` and `hashes`, row by row. Raises ValueError for columns of different lengths."""
    lists = [getattr(table, name) for name in names]
    texts: list[str] = [getattr(table, name) for name in hashes]
    if any(text.count(" ") > len(lists[0]) for text in texts):
        raise ValueError(f"there are more hashes than the {len(lists[0])} rows of {names[0]}")
    columns_of_hashes = [[None if text == "-" else text for text in joined.split(" ") if joined] for joined in texts]
    return zip(*lists, *columns_of_hashes, strict=True)


def split(data: bytes) -> tuple[Head, bytes]:
    """The line of a manifest's file, and its packed tables. Raises ValueError."""
    end = data.find(b"\n", 0, _HEAD_BYTES_MAX)
    if end < 0 or len(data) > MANIFEST_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes do not begin with a line of at most {_HEAD_BYTES_MAX}")
    return msgspec.json.decode(data[:end], type=Head), data[end + 1 :]


def pack(content: bytes) -> bytes:
    """The tables' JSON, compressed. Another version of zlib may make other bytes of it."""
    return zlib.compress(content, _LEVEL, _GZIP)


def unpack(packed: bytes, bytes_max: int = BYTES_MAX, values_max: int = _VALUES_MAX) -> bytes:
    """What `pack` was given. Raises ValueError for anything else, and for more bytes or values than these: what a small
    file holds is counted while it is unpacked."""
    unpacking = zlib.decompressobj(_GZIP)
    content, values = bytearray(), 0
    try:
        while not unpacking.eof and (part := unpacking.decompress(packed, _BLOCK_BYTES)):
            packed = unpacking.unconsumed_tail
            content += part
            values += sum(map(part.count, _VALUE_SIGNS))
            if len(content) > bytes_max or values > values_max:
                raise ValueError(f"packed tables hold more than {bytes_max} bytes or {values_max} values")
    except zlib.error as error:
        raise ValueError(f"packed tables cannot be read ({error})")
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"packed tables do not end after {len(content)} bytes")
    return bytes(content)
