"""The proof that a ledger goes on from an earlier receipt: a new receipt, and the digests that came since.

From the link that an earlier receipt names and the digests of the segments since, anybody computes the link that the
new receipt names. The digests say nothing of what is in the events. An answer is a line of JSON, `receipt` and for
each writer that was asked for the number of its segments since (null where its chain does not pass through the link),
and then 36 bytes for each of these segments: its rows, as an unsigned integer, and their digest.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.evidence import links
from rose.ledger.evidence import receipt as receipts
from rose.ledger.evidence.content import last_link
from rose.ledger.evidence.receipt import Mark, Receipt
from rose.ledger.evidence.recent import LINK, Recent
from rose.ledger.layout import LedgerError


@dataclass(frozen=True, slots=True)
class Answer:
    """A receipt, and for each writer that was asked for its links since, packed; None where there is no way from it."""

    receipt: Receipt
    links: dict[str, bytes | None]


def question(marks: Mapping[str, Mark]) -> bytes:
    """What is asked of a ledger: a receipt, and the proof that it goes on from these marks."""
    wanted = {writer: [mark.next_seq, mark.chain_sha256] for writer, mark in marks.items()}
    return json.dumps({"writers": wanted}).encode()


def answer(root: Path | str, question: bytes, recent: Recent | None = None) -> bytes:
    """The answer of the ledger at `root`, from its files where `recent` does not know it. Raises LedgerError."""
    try:
        wanted = {writer: (int(seq), str(value)) for writer, (seq, value) in json.loads(question)["writers"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(
            'a question for a proof is JSON such as {"writers": {"trainer": [120, "5f0c..."]}}'
        ) from error
    receipt = receipts.take(root)
    digests: dict[str, bytes | None] = {}
    for writer, (next_seq, value) in wanted.items():
        # Only of writers that there are: what is asked for may be any text.
        if (mark := receipt.writers.get(writer)) is None:
            digests[writer] = None
            continue
        known = None if recent is None else recent.since(writer, next_seq, value, mark.chain_sha256)
        digests[writer] = _read(Path(root), writer, next_seq, value, mark.chain_sha256) if known is None else known
    counts = {writer: None if packed is None else len(packed) // LINK.size for writer, packed in digests.items()}
    line = json.dumps({"receipt": receipt.to_json(), "segments": counts}).encode()
    return b"".join([line, b"\n", *(packed for packed in digests.values() if packed is not None)])


def _read(root: Path, writer: str, next_seq: int, value: str, until: str) -> bytes | None:
    """The links since the one of this value, packed, up to the one that the receipt names; more may have come."""
    if value == until:
        return b""
    packed = []
    for link in links.since(root, writer, next_seq, value) or ():
        packed.append(LINK.pack(link.next_seq - link.first_seq, bytes.fromhex(link.rows_sha256)))
        if link.value == until:
            return b"".join(packed)
    return None


def read(content: bytes) -> Answer:
    """The answer in some bytes. Raises LedgerError if it is none, or if its receipt cannot be trusted."""
    line, _, packed = content.partition(b"\n")
    try:
        document = json.loads(line)
        counts = document["segments"]
        ends = list(itertools.accumulate(LINK.size * (count or 0) for count in counts.values()))
        if (ends[-1] if ends else 0) != len(packed):
            raise ValueError("it is cut off")
        begins = [0, *ends[:-1]]
        digests = {
            writer: None if count is None else packed[begin:end]
            for (writer, count), begin, end in zip(counts.items(), begins, ends, strict=False)
        }
        receipt = json.dumps(document["receipt"]).encode()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(f"the answer is not a proof: {error}; does the gateway run this version of ROSE?") from error
    return Answer(receipts.parse(receipt, "the receipt of the ledger"), digests)


def leads(writer: str, before: Mark, packed: bytes, after: Mark) -> bool:
    """Whether these links lead from one mark of `writer` to the other."""
    reached = last_link(before.chain_sha256, writer, before.next_seq, LINK.iter_unpack(packed))
    return reached == (after.next_seq, after.chain_sha256)
