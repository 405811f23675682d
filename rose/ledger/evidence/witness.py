"""A witness: another host that countersigns a ledger's receipts, each only if it continues the one before.

What it countersigned lies in a folder of its own, one file each, the newest last. So a ledger that was set back,
rewritten or split in two cannot show the witness both histories, and its owner cannot make it forget the first.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from rose.clock import utc_us
from rose.ledger import layout
from rose.ledger.evidence import keys, proof
from rose.ledger.evidence import receipt as receipts
from rose.ledger.evidence.keys import Key
from rose.ledger.evidence.proof import Answer
from rose.ledger.evidence.receipt import Mark, Receipt
from rose.ledger.layout import LedgerError

KEY_FILE = "witness.key"
REFUSED = "refused"
#: What was refused is kept so often at most; a ledger that stays refused has nothing new to show.
_REFUSED_MAX = 100
#: Of the days before these last ones, only the last checkpoint is kept: a ledger of 1,000 writers has 0.3 MB each.
_DAYS_WHOLE = 2

#: Answers a question as `proof.answer` does.
Ask = Callable[[bytes], bytes]


class RefusedError(LedgerError):
    """The ledger is not a continuation of what was countersigned; the message says of which writer and from where."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A receipt that was countersigned, and its file. `new_events` came since the one before it."""

    path: Path
    receipt: Receipt
    new_events: int
    new_writers: tuple[str, ...]


class Witness:
    """What a witness countersigned, in a folder; one process at a time. Use `open`."""

    def __init__(self, folder: Path, key: Key) -> None:
        self.folder = folder
        self.key = key

    @classmethod
    @contextmanager
    def open(cls, folder: Path | str) -> Iterator[Witness]:
        """The witness whose state is `folder`, made if there is none.

        Raises LedgerError if another process has it, if it lies in a ledger, or if it cannot be written to.
        """
        folder = Path(folder).expanduser().resolve()
        outside_a_ledger(folder)
        try:
            layout.make_folder(folder)
            folder.chmod(0o700)
            with (folder / ".lock").open("ab") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise LedgerError(
                        f"another witness works in {folder}; give this one a folder of its own"
                    ) from error
                for leftover in folder.glob(".*.tmp"):
                    leftover.unlink()
                if (key := keys.load_or_make(folder / KEY_FILE)) is None:
                    raise LedgerError(f"no key can be made in {folder}: a witness signs with one of its own")
                yield cls(folder, key)
        except OSError as error:
            raise LedgerError(f"cannot keep checkpoints in {folder}: {error}; {layout.way_out(error)}") from error

    def files(self) -> list[Path]:
        """The files of checkpoints, in the order in which they were countersigned."""
        return sorted(self.folder.glob("*.json"))

    def newest(self) -> Receipt | None:
        """What was countersigned last. Raises LedgerError if its file was changed."""
        return self._read(files[-1]) if (files := self.files()) else None

    def countersign(self, ask: Ask, *, signed_by: str | None = None) -> Checkpoint:
        """Ask a ledger for a receipt, and countersign it if it continues the last one; on disk when this returns.

        `signed_by` is the public key that must have signed it; else the last one's, or for the first any. Raises
        RefusedError, after keeping what was shown, if it does not continue; LedgerError if the ledger cannot be asked,
        is another one, or if its receipt was signed by another key; OSError.
        """
        last = self.newest()
        asked = {} if last is None else last.writers
        content = ask(proof.question(asked))
        answer = proof.read(content)
        self._check_signer(answer.receipt, last, signed_by)
        departed = {} if last is None else _departed(last, answer)
        if last is not None and departed:
            # Kept first: a ledger that is not there when it is asked again has shown this all the same.
            kept = self._keep_refused(content, list(departed.values()))
            writer, *_ = departed
            with suppress(LedgerError):
                departed[writer] += self._narrowed(ask, writer)
            problems = list(departed.values())
            shown = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
            raise RefusedError(
                f"refused: ledger {last.ledger} is not a continuation of {self.files()[-1]}: {shown}. What it showed "
                f"is kept in {kept}"
            )
        return self._accept(answer.receipt, last)

    def _check_signer(self, receipt: Receipt, last: Receipt | None, signed_by: str | None) -> None:
        if last is not None and last.ledger not in ("", receipt.ledger):
            raise LedgerError(
                f"{self.folder} has checkpoints of the ledger {last.ledger}, and this is {receipt.ledger}; give each "
                "ledger a folder of its own"
            )
        expected = signed_by or (None if last is None else last.key)
        if expected is not None and receipt.key != expected.strip().lower():
            raise LedgerError(
                f"the receipt is signed by {receipt.key}, and {expected} was expected; if the ledger's host has a new "
                f"key, run this once with --key {receipt.key}"
            )

    def _accept(self, receipt: Receipt, last: Receipt | None) -> Checkpoint:
        at_us = utc_us()
        signed = receipt.countersigned(self.key, at_us, "" if last is None else last.sha256)
        files = self.files()
        number = int(files[-1].name.partition("-")[0]) + 1 if files else 0
        path = self.folder / f"{number:08d}-{datetime.fromtimestamp(at_us // 1_000_000, UTC):%Y%m%dT%H%M%SZ}.json"
        layout.write_file(path, signed.content(), read_back=True)
        self._prune()
        before = {} if last is None else last.writers
        return Checkpoint(
            path,
            signed,
            signed.events - sum(mark.next_seq for mark in before.values()),
            tuple(sorted(set(signed.writers) - set(before))),
        )

    def _prune(self) -> None:
        """Remove all but the last checkpoint of each day before the last few. After a refusal nothing is removed."""
        if (self.folder / REFUSED).exists():
            return
        days: dict[str, list[Path]] = {}
        for path in self.files():
            days.setdefault(path.name.partition("-")[2][:8], []).append(path)
        for day in sorted(days)[:-_DAYS_WHOLE]:
            for path in days[day][:-1]:
                path.unlink()

    def _keep_refused(self, content: bytes, problems: list[str]) -> Path:
        folder = self.folder / REFUSED
        layout.make_folder(folder)
        kept = sorted(folder.iterdir())
        if len(kept) >= _REFUSED_MAX:
            return kept[-1]
        path = folder / f"{len(kept):08d}.json"
        shown = {"after": self.files()[-1].name, "problems": problems, "answer_hex": content.hex()}
        layout.write_file(path, json.dumps(shown, indent=1).encode())
        return path

    def _narrowed(self, ask: Ask, writer: str) -> str:
        """How far the ledger is still as an earlier checkpoint has it: between that and the next it was changed."""
        files = self.files()
        holds, low, high = 0, 0, len(files) - 1
        while low < high:
            middle = (low + high) // 2
            mark = self._read(files[middle]).writers.get(writer)
            passes = mark is None
            if mark is not None:
                answer = proof.read(ask(proof.question({writer: mark})))
                passes = _problem(writer, mark, answer) is None
            if passes:
                holds, low = 0 if mark is None else mark.next_seq, middle + 1
            else:
                high = middle
        return f" (it was changed from seq {holds} on: up to there it is as it was countersigned)"

    def _read(self, path: Path) -> Receipt:
        receipt = receipts.read(path)
        if self.key.public not in {given.key for given in receipt.countersignatures}:
            raise LedgerError(f"{path} was not countersigned by the key in {self.folder / KEY_FILE}; who put it there?")
        return receipt


def outside_a_ledger(path: Path) -> None:
    """Raises LedgerError for a place in a ledger: whoever changes that could change what is kept there too."""
    for folder in (path, *path.parents):
        if (folder / layout.MARKER).exists():
            raise LedgerError(
                f"{path} lies in the ledger {folder}; what proves a ledger is kept out of it. Name another"
            )


def _departed(last: Receipt, answer: Answer) -> dict[str, str]:
    """What is wrong with each writer whose chain does not go on from what was countersigned."""
    problems = ((writer, _problem(writer, mark, answer)) for writer, mark in sorted(last.writers.items()))
    return {writer: problem for writer, problem in problems if problem is not None}


def _problem(writer: str, mark: Mark, answer: Answer) -> str | None:
    now = answer.receipt.writers.get(writer)
    if now is None:
        return f"writer {writer} is gone; it had {mark.next_seq:,} events"
    if now.next_seq < mark.next_seq:
        return (
            f"writer {writer} was set back: it ends at seq {now.next_seq - 1}, and had events up to {mark.next_seq - 1}"
        )
    packed = answer.links.get(writer)
    if packed is None or not proof.leads(writer, mark, packed, now):
        return f"writer {writer} was rewritten: its events up to seq {mark.next_seq - 1} are not what they were"
    return None
