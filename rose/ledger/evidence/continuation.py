"""Checks a ledger against earlier receipts: each writer's chain must still contain the links that the receipts have."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose.clock import iso
from rose.ledger.checks.chain import Signer, WriterReport
from rose.ledger.checks.expected import ROLL_UP_WRITER, ROLLED_UP_ACTION
from rose.ledger.evidence import receipt as receipts
from rose.ledger.evidence.receipt import Receipt
from rose.ledger.files import examine, keys, layout, registry, rolled, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.verify import Report, sum_faults


@dataclass(slots=True)
class Continuation:
    receipts: dict[str, Receipt]
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    events: int = 0  # Events since the newest receipt.

    @property
    def lines(self) -> list[str]:
        first, *_ = self.receipts.values()
        *_, last = self.receipts.values()
        times = iso(first.at_us) if len(self.receipts) == 1 else f"{iso(first.at_us)} to {iso(last.at_us)}"
        signers = ", ".join(sorted({receipt.key for receipt in self.receipts.values()}))
        sentences = [f"checked against {len(self.receipts)} receipts of {times}, signed by {signers}"]
        if not self.problems:
            sentences.append(f"{self.events:,} events came since the newest")
        return [*sentences, *(f"note: {note}" for note in self.notes)]

    def to_json(self) -> dict[str, Any]:
        named = [
            {"file": name, "at": iso(receipt.at_us), "key": receipt.key, "sha256": receipt.sha256}
            for name, receipt in self.receipts.items()
        ]
        found = {"problems": self.problems, "not_checked": self.unchecked, "notes": self.notes}
        return {"receipts": named, **found, "events_since": self.events}


def read(paths: Iterable[Path], *, key: str | None = None) -> dict[str, Receipt]:
    receipts_by_name = {}
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files:
            raise LedgerError(f"{path} has no receipt; name a file that `rose ledger receipt` wrote, or a folder")
        for file in files:
            receipt = receipts.read(file)
            if key is not None and receipt.key != key.strip().lower():
                raise LedgerError(f"{file} was signed by the key {receipt.key}, not by {key}")
            receipts_by_name[str(file)] = receipt
    return dict(sorted(receipts_by_name.items(), key=lambda named: named[1].at_us))


def marks(named: Mapping[str, Receipt]) -> dict[str, list[int]]:
    """Return, for each writer, the next seq at the time of each receipt. Give the result to `verify` as `marks`. The
    report then has the chain's link just before each of these seqs. `check` compares these links with the receipts."""
    marked: dict[str, set[int]] = {}
    for receipt in named.values():
        for writer, mark in receipt.writers.items():
            marked.setdefault(writer, set()).add(mark.next_seq)
    return {writer: sorted(seqs) for writer, seqs in marked.items()}


class _Trusted:
    """The keys that are trusted to sign for each writer: those in the oldest receipt, and endorsed keys."""

    def __init__(self, receipt: Receipt, content: bytes) -> None:
        lines = registry.parse(content)
        named = [(writer, key) for writer, mark in receipt.writers.items() for key in mark.keys]
        # Lines added after the receipt are no reason to trust their signer.
        before = registry.endorsements(registry.parse(content[: receipt.registry_bytes])).endorsers
        pairs = registry.endorsements(lines, before | {receipt.key}, named).pairs
        self._known = {writer: {key for name, key in pairs if name == writer} for writer in {name for name, _ in pairs}}
        self.seqs = {writer: mark.next_seq for writer, mark in receipt.writers.items()}

    def first_foreign(self, writer_report: WriterReport, seq: int) -> Signer | None:
        known = self._known.get(writer_report.writer, set())
        if writer_report.writer in self.seqs and not known:
            known = {""}
        ends = [*(signer.first_seq for signer in writer_report.signers[1:]), writer_report.next_seq + 1]
        both = zip(writer_report.signers, ends, strict=False)
        later = [signer for signer, end in both if end > seq or signer.first_seq >= seq]
        return next((signer for signer in later if signer.key not in known), None)


def check(report: Report, named: Mapping[str, Receipt]) -> Continuation:
    """Check that a ledger still has what earlier receipts recorded. `report` comes from `verify(marks=marks(named))`.
    `named` has the receipts by file name, oldest first. Raises LedgerError for a receipt of another ledger."""
    ledger = Ledger(report.root)
    for name, receipt in named.items():
        if receipt.ledger != ledger.id:
            raise LedgerError(f"{name} belongs to ledger {receipt.ledger}, but {ledger.folder} has id {ledger.id!r}")
    done = Continuation(dict(named))
    try:
        content = report.registry
        for name, receipt in named.items():
            if hashlib.sha256(content[: receipt.registry_bytes]).hexdigest() != receipt.registry_sha256:
                done.problems.append(f"{registry.FILE}: it does not begin with the lines that it had in {name}")
                break
        oldest, newest = next(iter(named.values())), list(named.values())[-1]
        trusted = _Trusted(oldest, content)
        written = {kept.writer: kept for kept in report.writers}
        for writer in sorted({*written, *(writer for receipt in named.values() for writer in receipt.writers)}):
            kept = written.get(writer) or WriterReport(writer)
            if _passes(ledger, kept, named, trusted, done):
                done.events += kept.next_seq - (newest.writers[writer].next_seq if writer in newest.writers else 0)
                _signed_since(kept, trusted, done)
        _sums(ledger, named, done)
        _no_state_of_pricing(ledger, done)
    except LedgerError as error:
        done.problems.append(f"not everything could be checked against the receipts: {error}")
    return done


def _passes(
    ledger: Ledger, writer_report: WriterReport, named: Mapping[str, Receipt], trusted: _Trusted, done: Continuation
) -> bool:
    writer = writer_report.writer
    marked = [(name, receipt.writers[writer]) for name, receipt in named.items() if writer in receipt.writers]
    sound_until, match = 0, "no receipt matches"
    for name, mark in sorted(marked, key=lambda one: one[1].next_seq):
        if mark.chain_sha256 in writer_report.links.get(mark.next_seq, ()):
            sound_until, match = mark.next_seq, f"up to seq {mark.next_seq - 1} it matches {name}"
            continue
        if not writer_report.segments:
            what = f"every event is gone; {name} has {mark.next_seq:,} of them"
        elif writer_report.next_seq < mark.next_seq:
            what = f"it ends at seq {writer_report.next_seq - 1}, and {name} has events up to seq {mark.next_seq - 1}"
        else:
            what = f"its events up to seq {mark.next_seq - 1} differ from {name}"
        foreign = trusted.first_foreign(writer_report, sound_until)
        if foreign is not None:
            what += f", and from seq {foreign.first_seq} on ({foreign.segment}) {_unsigned(foreign)}"
        where = _file_of(ledger, writer, sound_until)
        done.problems.append(f"{where}: writer {writer} was rewritten or set back: {what}; {match}")
        return False
    return True


def _file_of(ledger: Ledger, writer: str, seq: int) -> str:
    for part in layout.chain(ledger.folder, writer):
        if segments.end_seq(ledger.folder, part) > seq:
            if part.state != "live":
                return part.manifest
            names = segments.segment_names(ledger.folder / part.folder)
            return next(
                f"{part.folder}/{name}"
                for name in names
                if segments.read_header((ledger.folder / part.folder / name).read_bytes()).last_seq >= seq
            )
    return f"live/{writer}"


def _signed_since(writer_report: WriterReport, trusted: _Trusted, done: Continuation) -> None:
    seq = trusted.seqs.get(writer_report.writer, 0)
    if (foreign := trusted.first_foreign(writer_report, seq)) is not None:
        done.problems.append(
            f"{foreign.segment}: from seq {max(seq, foreign.first_seq)} on, writer {writer_report.writer}: "
            f"{_unsigned(foreign)}. {_way_on(foreign)}"
        )
    elif writer_report.next_seq > seq and not any(signer.key for signer in writer_report.signers):
        done.notes.append(f"writer {writer_report.writer} does not sign: nothing proves who wrote its newer events")


def _unsigned(signer: Signer) -> str:
    if not signer.key:
        return "it is not signed"
    return f"it is signed by {signer.key}, which no receipt names for this writer, and no key endorsed for it"


def _way_on(signer: Signer) -> str:
    if signer.key:
        return f"If it is your key, run `rose ledger endorse {signer.key}` on a host with a key that may endorse"
    return (
        f"No endorsement can sign it later. If it is your writer, give its host a key ({keys.VARIABLE} names "
        "its file), take a new receipt, and verify against that receipt from then on"
    )


def _sums(ledger: Ledger, named: Mapping[str, Receipt], done: Continuation) -> None:
    recorded = {event["coverage_sha256"] for event in examine.recorded(ledger.folder, ROLL_UP_WRITER, ROLLED_UP_ACTION)}
    for name, receipt in named.items():
        if receipt.roll_up is not None and receipt.roll_up.coverage_sha256 not in recorded:
            folder = f"{rolled.FOLDER}/{receipt.roll_up.generation:06d}"
            done.problems.append(f"{folder}: {name} names these daily sums, but no event of a roll-up does")
            break
    problems, missing, unchecked = sum_faults(ledger.folder)
    done.problems += problems
    done.unchecked += unchecked
    newest, fixed = rolled.newest(ledger.folder), {one.roll_up.coverage_sha256 for one in named.values() if one.roll_up}
    if missing is not None and newest is not None and newest.sha256 not in fixed:
        done.notes.append(f"the daily sums were not compared with their events: {missing}")


def _no_state_of_pricing(ledger: Ledger, done: Continuation) -> None:
    """Remove pricing's sums, which may have been edited. Pricing makes them again from the events."""
    try:
        (ledger.folder / layout.PRICING).unlink(missing_ok=True)
    except OSError as error:
        if not os.access(ledger.folder, os.W_OK):
            done.notes.append(
                f"{layout.PRICING} cannot be removed, since nothing can be written here: what pricing reads from it is "
                "not proved; price a copy of the ledger without it"
            )
            return
        done.problems.append(f"{layout.PRICING}: nothing proves its sums, and it cannot be removed ({error.strerror})")
