"""A link of a writer's chain: what one segment says of its content, wherever its rows are now."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from rose.ledger.evidence import keys
from rose.ledger.evidence.content import chain_sha256, link_message


@dataclass(frozen=True, slots=True)
class Link:
    writer: str
    #: Original path of the segment, and the SHA-256 of its file and of the one before it.
    file: str
    sha256: str
    previous_sha256: str
    first_seq: int
    last_seq: int
    rows_sha256: str
    chain_sha256: str
    #: The signer's public key, and the signature; empty if unsigned.
    key: str
    signature: str

    @classmethod
    def read(cls, writer: str, entry: Mapping[str, Any]) -> Self:
        """Return the link from a segment's entry in a manifest. Raises KeyError, TypeError, ValueError."""
        link = cls(writer, **{name: entry[name] for name in cls.__slots__ if name != "writer"})
        for name in cls.__slots__:
            if type(getattr(link, name)) is not (int if name.endswith("_seq") else str):
                raise TypeError(name)
        if not (link.rows_sha256 and link.chain_sha256):
            raise ValueError("a segment without a digest of its rows")
        return link

    def entry(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "writer"}

    @property
    def events(self) -> int:
        return self.last_seq - self.first_seq + 1

    def fault(self, previous: str | None) -> str | None:
        """Return what is wrong with the link after the link `previous` (None: unknown), or None."""
        digest = (self.writer, self.first_seq, self.last_seq, self.rows_sha256)
        if previous is not None and self.chain_sha256 != chain_sha256(previous, *digest):
            return "its content does not follow what was written before it: it was replaced, or something before it was"
        return None

    def signature_fault(self) -> str | None:
        """Return what is wrong with the signature; None if it is by the named key, or if nobody signed."""
        if not (self.key or self.signature) or keys.check(self.key, link_message(self.chain_sha256), self.signature):
            return None
        return f"its signature is not by the key {self.key!r} that it names: another signed it, or it was changed"
