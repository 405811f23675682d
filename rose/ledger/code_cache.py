"""What takes long to make, of the code alone: kept beside the code, where Python keeps its compiled modules.

Whoever may write there may change the code as well. Where nothing may be written it is made again by each process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rose.ledger import layout

_DIGEST_BYTES = 32


def kept(name: str, source: str, made_of: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, kept as `name` beside the module whose file is `source` for as long as `made_of` is the same.

    A file that is damaged, or of something else, is replaced.
    """
    path = Path(importlib.util.cache_from_source(source)).with_name(name)
    key = hashlib.sha256(made_of.encode()).digest()
    with suppress(OSError):
        file = path.read_bytes()
        digest, content = file[:_DIGEST_BYTES], file[_DIGEST_BYTES:]
        if digest == _digest(key, content):
            return content
    content = make()
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            # One that did not come to disk is damaged, and no more than that.
            layout.write_file(path, _digest(key, content) + content, sync=False)
    return content


def _digest(key: bytes, content: bytes) -> bytes:
    return hashlib.sha256(key + content).digest()
