"""The newest links of many writers, noted as they come in, so that a proof of what came since reads no file."""

from __future__ import annotations

import struct
import threading
from collections import deque

from rose.ledger.evidence.content import chain_sha256
from rose.ledger.segments import Header

#: Of each writer; one that writes twice a second reaches back four minutes and more, in 60 kB.
_LINKS_MAX = 512
LINK = struct.Struct(">I32s")


class Recent:
    """Threads may share it. What it does not know is read from the files."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        #: Of each writer (next_seq, value, packed link), the oldest first, each going on from the one before it.
        self._links: dict[str, deque[tuple[int, str, bytes]]] = {}

    def note(self, header: Header) -> None:
        """Note the segment that has just become the newest of its writer."""
        if not header.rows_sha256:
            return
        count, next_seq = header.last_seq - header.first_seq + 1, header.last_seq + 1
        with self._mutex:
            known = self._links.setdefault(header.writer, deque(maxlen=_LINKS_MAX))
            if known:
                value = chain_sha256(known[-1][1], header.writer, known[-1][0], header.last_seq, header.rows_sha256)
                if value != header.chain_sha256:
                    known.clear()
            known.append((next_seq, header.chain_sha256, LINK.pack(count, bytes.fromhex(header.rows_sha256))))

    def since(self, writer: str, next_seq: int, value: str, until: str) -> bytes | None:
        """The links after the one of this value that ends before `next_seq`, up to the one of the value `until`.

        None if one of the two is not known.
        """
        with self._mutex:
            known = list(self._links.get(writer, ()))
        lines: list[bytes] | None = None
        for link_next_seq, link_value, packed in reversed(known):
            if link_value == until:
                lines = []
            if lines is not None:
                if (link_next_seq, link_value) == (next_seq, value):
                    return b"".join(reversed(lines))
                lines.append(packed)
        return None
