"""Tables of columns as JSON, packed: what is alike lies side by side, and hashes one after the other."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: What a forged table may fill. Those of a hundred billion weights on a thousand ranks take a tenth of it.
_BYTES_MAX = 1 << 30
_LEVEL = 6
#: What zlib calls the gzip format, which every host can unpack.
_GZIP = 31


def canonical(body: Mapping[str, Any]) -> bytes:
    """The one JSON for these values."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def columns(entries: Sequence[object], names: Sequence[str], hashes: Sequence[str]) -> dict[str, Any]:
    """A column for each of these attributes; `hashes`, which may be None, become one text."""
    table: dict[str, Any] = {name: [getattr(entry, name) for entry in entries] for name in names}
    for name in hashes:
        table[name] = " ".join(getattr(entry, name) or "-" for entry in entries)
    return table


def rows(table: Mapping[str, Any], names: Sequence[str], hashes: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of `names` and `hashes`, row by row. Raises KeyError for a column that lacks, ValueError for columns
    of different lengths, AttributeError or TypeError for what is no column."""
    lists = [table[name] for name in names]
    texts = [[None if text == "-" else text for text in table[name].split()] for name in hashes]
    return zip(*lists, *texts, strict=True)


def pack(content: bytes) -> bytes:
    """The tables' JSON, compressed. Another version of zlib may make other bytes of it."""
    return zlib.compress(content, _LEVEL, _GZIP)


def unpack(packed: bytes, bytes_max: int = _BYTES_MAX) -> bytes:
    """What `pack` was given. Raises ValueError for anything else, and for more than `bytes_max`."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        content = unpacking.decompress(packed, bytes_max)
    except zlib.error as error:
        raise ValueError(f"packed tables cannot be read ({error})")
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"packed tables of {len(packed)} bytes do not end with them, or hold more than {bytes_max}")
    return content
