"""A receipt is a signed list of each chain's newest link. If it is kept elsewhere, it reveals changes of old events."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rose.clock import iso, utc_us
from rose.ledger import verified
from rose.ledger.files import keys, layout, registry, rolled, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger

FORMAT = 3
_TAG = b"rose receipt 1\n"
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Writer = Annotated[str, Field(pattern=f"^{layout.WRITER_NAME.pattern}$")]


class _Signed(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Mark(_Signed):
    next_seq: _Count
    chain_sha256: _Sha256
    segment: str
    keys: tuple[str, ...]


class RollUp(_Signed):
    generation: _Count
    coverage_sha256: _Sha256


class Receipt(_Signed):
    """The signed state of a whole ledger at one moment. Times are UTC microseconds since the Unix epoch."""

    ledger: str
    at_us: _Count
    by: str
    writers: dict[_Writer, Mark]
    #: Length of the registry, which only grows, and the SHA-256 of its bytes.
    registry_bytes: _Count
    registry_sha256: _Sha256
    roll_up: RollUp | None
    verified: dict[str, Any] | None
    key: str
    signature: str = ""

    @property
    def events(self) -> int:
        return sum(mark.next_seq for mark in self.writers.values())

    @property
    def message(self) -> bytes:
        document = self.to_json()
        del document["signature"]
        return _TAG + canonical(document)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.message).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"rose_receipt": FORMAT, "at": iso(self.at_us), "events": self.events, **self.model_dump(mode="json")}

    def content(self) -> bytes:
        return json.dumps(self.to_json(), indent=1, sort_keys=True).encode() + b"\n"


def canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def take(ledger: Ledger) -> Receipt:
    """Return a receipt of all events so far, signed with this user's key. Raises LedgerError without a key."""
    key = keys.load_or_make()
    if key is None:
        raise LedgerError(f"there is no key to sign a receipt: set {keys.VARIABLE}, or give this user a home folder")
    # Before the writers: each writer in it is then listed, or its removal shows.
    content = registry.read(ledger.folder)
    lines = registry.parse(content)
    coverage = rolled.newest(ledger.folder)
    state = verified.state(ledger.folder)
    writers = {
        writer: Mark(
            next_seq=link.last_seq + 1,
            chain_sha256=link.chain_sha256,
            segment=link.file,
            keys=tuple(sorted({*registry.keys_of(lines, writer), *filter(None, [link.key])})),
        )
        for writer, link in segments.newest_links(ledger.folder).items()
    }
    unsigned = Receipt(
        ledger=ledger.id,
        at_us=utc_us(),
        by=verified.user_at_host(),
        writers=writers,
        registry_bytes=len(content),
        registry_sha256=hashlib.sha256(content).hexdigest(),
        roll_up=None if coverage is None else RollUp(generation=coverage.generation, coverage_sha256=coverage.sha256),
        verified=None if state is None else state.to_json(),
        key=key.public,
    )
    return unsigned.model_copy(update={"signature": key.sign(unsigned.message)})


def read(path: Path) -> Receipt:
    try:
        document = json.loads(path.read_bytes())
        version = document["rose_receipt"]
        if version != FORMAT:
            raise LedgerError(f"{path} is a receipt of format {version!r}; this version of ROSE reads format {FORMAT}")
        receipt = Receipt.model_validate_json(json.dumps({field: document[field] for field in Receipt.model_fields}))
        # This version would not write such a document, so it was not signed.
        same = json.loads(receipt.content()) == document
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise LedgerError(f"{path} is not a receipt, or it is damaged; use another copy of it") from error
    if not same or not keys.check(receipt.key, receipt.message, receipt.signature):
        raise LedgerError(f"{path}: the signature is wrong, so the file was changed after signing; use another copy")
    return receipt


def keep(path: Path, content: bytes) -> None:
    check_place(path)
    with layout.refusals(f"cannot write {path}"):
        layout.write_file(path, content)


def check_place(path: Path) -> None:
    place = path.expanduser().resolve()
    for folder in (place, *place.parents):
        if (folder / layout.MARKER).exists():
            raise LedgerError(f"{place} lies in the ledger {folder}; keep receipts outside it. Name another place")
    if path.exists() or path.is_symlink():
        raise LedgerError(f"{path} exists; name a new file, because an old receipt may still be needed")
    if not path.parent.is_dir():
        raise LedgerError(f"{path}: there is no folder {path.parent}; make it first")
