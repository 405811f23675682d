"""The receipt: what a ledger held at one moment, signed, and small enough to be kept out of its owner's reach.

It names the link of each writer's chain that was the newest. Who kept it can show later that the ledger is still a
continuation of it (`rose.ledger.evidence.continuation`), whatever has been done to the ledger's files since.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.clock import iso, utc_us
from rose.ledger import layout, verified
from rose.ledger.checks import registry
from rose.ledger.evidence import keys, links
from rose.ledger.growth import rolled
from rose.ledger.layout import LedgerError

FORMAT = 3
_TAG = b"rose receipt 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a writer was."""

    #: Its events: seq counts them from 0.
    next_seq: int
    #: Its newest link (`rose.ledger.evidence.links.Link.value`), and the segment that it is of, as it was written.
    chain_sha256: str
    segment: str
    #: Public keys that it was known to sign with; none if it did not sign.
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUp:
    """The newest daily sums that stood."""

    generation: int
    coverage_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A checkpoint of a whole ledger. Times are UTC microseconds since the Unix epoch."""

    ledger: str
    at_us: int
    #: Who made it, as user@host.
    by: str
    writers: dict[str, Mark]
    #: Length of the registry of writers, to which lines are only added, and the SHA-256 of its bytes.
    registry_bytes: int
    registry_sha256: str
    roll_up: RollUp | None
    #: The outcome of the last verification until then; None if there was none.
    verified: dict[str, Any] | None
    key: str
    signature: str = ""

    @property
    def events(self) -> int:
        """Events of all writers."""
        return sum(mark.next_seq for mark in self.writers.values())

    @property
    def message(self) -> bytes:
        """What the signature is over: all but the signature."""
        document = self.to_json()
        del document["signature"]
        return _TAG + canonical(document)

    @property
    def sha256(self) -> str:
        """Of what was signed, in hexadecimal: what names this receipt in others."""
        return hashlib.sha256(self.message).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The document as it is written."""
        return {
            "rose_receipt": FORMAT,
            "at": iso(self.at_us),
            "events": self.events,
            **dataclasses.asdict(self),
        }

    def content(self) -> bytes:
        """The bytes of its file."""
        return json.dumps(self.to_json(), indent=1, sort_keys=True).encode() + b"\n"


def canonical(document: Any) -> bytes:
    """The one text of a JSON document."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def take(root: Path | str) -> Receipt:
    """A receipt of the ledger at `root` as it is now, signed with this user's key.

    Reads the newest header of each writer, so it takes as long for any number of events; writers may go on. A ledger
    without an id is given one. Raises LedgerError if `root` is no ledger or there is no key, and for a damaged file.
    """
    root = layout.check(root)
    key = keys.load_or_make()
    if key is None:
        raise LedgerError(
            f"a receipt is signed, and there is no key: {keys.VARIABLE} or the home directory must allow one to be made"
        )
    try:
        ledger_id = layout.give_id(root)
    except OSError as error:
        raise LedgerError(
            f"{root} has no id yet, which a receipt names it by, and none can be written there: {error.strerror}. Run "
            "this once where the ledger can be written"
        ) from error
    # Read before the writers: what it names is then among them, or its removal shows.
    content = registry.read(root)
    known: dict[str, set[str]] = {}
    for line in registry.parse(content):
        known.setdefault(line.writer, set()).update(filter(None, [line.key]))
    coverage = rolled.newest(root)
    state = verified.state(root)
    writers = {}
    for writer in layout.writers(root):
        if (link := links.newest(root, writer)) is not None:
            writers[writer] = Mark(
                next_seq=link.next_seq,
                chain_sha256=link.value,
                segment=link.path,
                keys=tuple(sorted({*known.get(writer, ()), *filter(None, [link.key])})),
            )
    unsigned = Receipt(
        ledger=ledger_id,
        at_us=utc_us(),
        by=verified.user_at_host(),
        writers=writers,
        registry_bytes=len(content),
        registry_sha256=hashlib.sha256(content).hexdigest(),
        roll_up=None if coverage is None else RollUp(generation=coverage.generation, coverage_sha256=coverage.sha256),
        verified=None if state is None else state.to_json(),
        key=key.public,
    )
    return dataclasses.replace(unsigned, signature=key.sign(unsigned.message))


def read(path: Path) -> Receipt:
    """The receipt in a file. Raises LedgerError if there is none, or if a signature in it is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}") from error
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Receipt:
    """The receipt in some bytes, which errors call `name`. Raises LedgerError as `read` does."""
    try:
        document = json.loads(content)
        version = document["rose_receipt"]
        if version != FORMAT:
            raise LedgerError(f"{name} is a receipt of format {version!r}; this version of ROSE reads format {FORMAT}")
        fields = {field.name: document[field.name] for field in dataclasses.fields(Receipt)}
        fields["writers"] = {
            writer: Mark(**{**mark, "keys": tuple(mark["keys"])}) for writer, mark in document["writers"].items()
        }
        fields["roll_up"] = None if document["roll_up"] is None else RollUp(**document["roll_up"])
        receipt = Receipt(**fields)
        _check_types(receipt)
        # What this version would not have written is not what was signed.
        same = json.loads(receipt.content()) == document
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise LedgerError(f"{name} is not a receipt, or it is damaged; use another copy of it") from error
    if not same or not keys.check(receipt.key, receipt.message, receipt.signature):
        raise LedgerError(f"{name}: the signature is wrong, so it was changed after it was signed; use another copy")
    return receipt


def _check_types(receipt: Receipt) -> None:
    """Raises ValueError for a receipt with a value that none has: whoever signed it may have signed anything."""
    rolled_up = () if receipt.roll_up is None else (receipt.roll_up,)
    for record in (receipt, *receipt.writers.values(), *rolled_up):
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            # The type as it is written above. A truth is an int too.
            if field.type == "int" and not (type(value) is int and 0 <= value < 2**63):
                raise ValueError(f"{field.name} is {value!r}")
            if field.type == "str" and not isinstance(value, str):
                raise ValueError(f"{field.name} is {value!r}")
    digests = [receipt.registry_sha256, *(mark.chain_sha256 for mark in receipt.writers.values())]
    digests += [roll_up.coverage_sha256 for roll_up in rolled_up]
    if not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests):
        raise ValueError("a digest is not 64 hexadecimal digits")
    if not all(layout.WRITER_NAME.fullmatch(writer) for writer in receipt.writers):
        raise ValueError("the name of a writer is not valid")
    if not all(isinstance(key, str) for mark in receipt.writers.values() for key in mark.keys):
        raise ValueError("a key is not text")
    if receipt.verified is not None and not isinstance(receipt.verified, dict):
        raise ValueError(f"verified is {receipt.verified!r}")


def keep(path: Path, content: bytes) -> None:
    """Write a receipt to a new file outside every ledger: whoever changes a ledger could change what lies in it too.

    Raises LedgerError for a place in a ledger, if there is such a file, or if it cannot be written.
    """
    check_place(path)
    try:
        layout.write_file(path, content)
    except OSError as error:
        raise LedgerError(f"cannot write {path}: {error.strerror}; {layout.way_out(error)}") from error


def check_place(path: Path) -> None:
    """Raises LedgerError unless a receipt may be written to the new file `path`."""
    check_outside_ledgers(path)
    if path.exists() or path.is_symlink():
        raise LedgerError(f"{path} exists; name a new file: a receipt that was kept may still be needed")
    if not path.parent.is_dir():
        raise LedgerError(f"{path}: there is no folder {path.parent}; make it first")


def check_outside_ledgers(path: Path) -> None:
    """Raises LedgerError for a place in a ledger."""
    path = path.expanduser().resolve()
    for folder in (path, *path.parents):
        if (folder / layout.MARKER).exists():
            raise LedgerError(f"{path} lies in the ledger {folder}; keep receipts outside it. Name another place")
