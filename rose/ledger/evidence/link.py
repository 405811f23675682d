"""A link of a writer's chain: what one segment says of its content, wherever the segment's rows lie by now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose.ledger.evidence import keys
from rose.ledger.evidence.content import chain_sha256, link_message


@dataclass(frozen=True, slots=True)
class Link:
    """The link of one segment. All but the numbers, the writer and the file's hash are empty in old segments."""

    writer: str
    first_seq: int
    last_seq: int
    #: Of the segment's file as it was written.
    sha256: str
    rows_sha256: str
    chain_sha256: str
    #: Public key of who signed, and the signature; empty where nobody did.
    key: str
    signature: str

    @classmethod
    def read(cls, writer: str, entry: Mapping[str, Any]) -> Link:
        """From what a manifest lists of a segment. Raises KeyError."""
        texts = (str(entry.get(name, "")) for name in ("rows_sha256", "chain_sha256", "key", "signature"))
        return cls(writer, entry["first_seq"], entry["last_seq"], entry["sha256"], *texts)

    @property
    def chained(self) -> bool:
        """Whether the segment says anything of its content; those of the first versions do not."""
        return bool(self.rows_sha256 or self.chain_sha256 or self.key or self.signature)

    @property
    def mark(self) -> str:
        """What a receipt's mark must be to be met by it: the hash of a file is never taken for a link."""
        return self.chain_sha256 if self.chained else f"file {self.sha256}"

    @property
    def end(self) -> str:
        """What the next link goes on from."""
        return self.chain_sha256 or self.sha256

    @property
    def events(self) -> int:
        """How many events the segment has."""
        return self.last_seq - self.first_seq + 1

    def expected(self, previous: str) -> str:
        """What `chain_sha256` must be after a link that ends in `previous`."""
        return chain_sha256(previous, self.writer, self.first_seq, self.last_seq, self.rows_sha256)

    def fault(self, previous: str | None) -> str | None:
        """What is wrong with the link after one that ends in `previous`, None where that is unknown."""
        if self.chained and previous is not None and self.chain_sha256 != self.expected(previous):
            return "its content does not follow what was written before it: it was replaced, or something before it was"
        return None

    def signature_fault(self) -> str | None:
        """What is wrong with the signature; None if it is by the key that is named, or if nobody signed."""
        if not (self.key or self.signature) or keys.check(self.key, link_message(self.chain_sha256), self.signature):
            return None
        return f"its signature is not by the key {self.key!r} that it names: another signed it, or it was changed"
