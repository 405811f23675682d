"""The ledgers that are served: their names, what of each was verified, and what tells one answer from a newer one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose.errors import did_you_mean
from rose.ledger import access, catalog, layout, verified, verify
from rose.ledger.examine import Seen
from rose.ledger.growth import archive
from rose.ledger.layout import LedgerError
from rose.pricing.api import window
from rose.pricing.api.parameters import PeriodQuery, RequestError
from rose.pricing.closing import records
from rose.pricing.closing.period import Period
from rose.pricing.money import PricingError
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.spend import cost, saved
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import Cost, Question
from rose.pricing.spend.saved import RunSaved, Saved

_NAME = re.compile(r"[\w.-]{1,100}")
#: A problem's text is kept to so many characters, and so many problems are listed.
_PROBLEM_CHARACTERS, _PROBLEMS = 500, 20


class UnverifiedError(RequestError):
    """The ledger does not verify, so no figure of it is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """One ledger, the price book that its open hours are priced by, and whether it may be priced unverified."""

    name: str
    root: Path
    price_book: str | None = None
    allow_unverified: bool = False
    #: What was verified of it, so that a request reads new files only.
    seen: Seen = field(default_factory=Seen)
    #: What each run saved, which takes seconds to work out.
    runs: Runs = field(default_factory=lambda: Runs())

    @property
    def mark(self) -> str:
        """Names the newest segment of every writer but the access log: it changes when the ledger gains events."""
        heads = sorted((self.root / "heads").glob("[!.]*.json"))
        return "\n".join(f"{head.name} {head.read_text('utf-8')}" for head in heads if head.stem != access.WRITER)

    def period(self, asked: PeriodQuery, now_ns: int) -> tuple[Period, Calendar]:
        """The time that is asked for, and its calendar. Raises RequestError, PriceBookError, LedgerError."""
        try:
            calendar = Calendar(asked.tz)
        except PricingError as error:
            raise RequestError(f"parameter tz is {asked.tz!r}: {error}") from None
        try:
            return window.period(asked.window, calendar, now_ns), calendar
        except PricingError as error:
            raise RequestError(f"parameter window is {asked.window!r}: {error}") from None

    def provenances(self, period: Period, chosen: str | None) -> list[str]:
        """What the runs and the closes of a period are, or the one that was chosen. Raises LedgerError."""
        if chosen is not None:
            return [chosen]
        present = {str(row["provenance"]) for row in self.rows("closing/provenances", period)}
        closed = (posted[0] for posted in records.postings(self.root).values())
        return sorted(present | {first.provenance for first in closed if first.period.overlaps(period)})

    def rows(self, query: str, period: Period | None = None, provenance: str | None = None) -> list[dict[str, Any]]:
        """Rows of `sql/<query>.sql`. Raises LedgerError."""
        with catalog.connect(self.root) as connection:
            if period is not None:
                set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
            if provenance is not None:
                set_variables(connection, provenance=provenance)
            return rows(connection, query)

    def archived(self, period: Period) -> bool:
        """Whether events of the period were archived, so that counts of it would be of a part."""
        newest_us = archive.newest_us(self.root)
        return newest_us is not None and period.from_ns <= newest_us * 1000

    def refuse_unverified(self) -> None:
        """Raises UnverifiedError if the ledger does not verify and may not be priced so. Reads new files only."""
        problems = [] if self.allow_unverified else verify.verify(self.root, seen=self.seen).doubts
        if problems:
            raise UnverifiedError(
                f"ledger {self.name} does not verify, so its figures cannot be trusted: {problems[0]} "
                f"({len(problems)} problems; /trust lists them, and `rose ledger verify` names what is damaged)",
                503,
            )

    def trust(self) -> dict[str, Any]:
        """Up to when it was verified, and what is wrong with it now. Reads new files only. Raises LedgerError."""
        report = verify.verify(self.root, seen=self.seen)
        last = verified.state(self.root)
        return {
            "ledger": self.name,
            "sound": report.ok,
            # A folder that cannot be written keeps no record.
            "verified": None if last is None else last.to_json(),
            "events": sum(writer.events for writer in report.writers),
            "problem_count": len(report.doubts),
            "problems": [problem[:_PROBLEM_CHARACTERS] for problem in report.doubts[:_PROBLEMS]],
            "notes": [note[:_PROBLEM_CHARACTERS] for note in report.notes[:_PROBLEMS]],
        }


class Runs:
    """What each run saved, by provenance and run, as long as what it rests on stays."""

    def __init__(self) -> None:
        self._key: object = None
        self._runs: dict[str, dict[str, RunSaved]] = {}

    def of(self, key: object, provenance: str) -> dict[str, RunSaved]:
        """What is known of a provenance; none where `key`, which names all that it rests on, is another one."""
        if key != self._key:
            self._key, self._runs = key, {}
        return self._runs.setdefault(provenance, {})


def named(given: Sequence[str], price_book: str | None, *, allow_unverified: bool = False) -> list[Ledger]:
    """The ledgers of FOLDER or NAME=FOLDER; a folder is called by its own name. Raises LedgerError."""
    ledgers: dict[str, Ledger] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            name, folder = Path(text).resolve().name, text
        if name in ledgers:
            raise LedgerError(f"two ledgers are called {name!r}: name one of them, as in NAME={folder}")
        ledgers[name] = Ledger(
            name=name, root=layout.check(folder), price_book=price_book, allow_unverified=allow_unverified
        )
    return list(ledgers.values())


def chosen(ledgers: Iterable[Ledger], name: str | None) -> list[Ledger]:
    """The one of that name; all for None. Raises RequestError."""
    known = {ledger.name: ledger for ledger in ledgers}
    if name is None:
        return list(known.values())
    if name not in known:
        raise RequestError(f"parameter ledger is {name!r}: there is none{did_you_mean(name, known)}", 404)
    return [known[name]]


@dataclass(frozen=True, slots=True)
class Part:
    """What every answer is divided by: one ledger, one time, one provenance."""

    ledger: Ledger
    period: Period
    calendar: Calendar
    provenance: str
    now_ns: int

    def ask(self, by: tuple[str, ...], only: Mapping[str, str] | None = None) -> Cost:
        """As `rose cost`. Raises what `cost.ask` does."""
        ledger = self.ledger
        asked = Question(period=self.period, by=by, only=only or {}, calendar=self.calendar, provenance=self.provenance)
        return cost.ask(
            ledger.root,
            asked,
            ledger.price_book,
            allow_unverified=ledger.allow_unverified,
            seen=ledger.seen,
        )

    def saved(self) -> Saved:
        """As `rose saved`; a run is priced once until ledger or prices change. Raises what `saved.saved` does."""
        ledger, mark = self.ledger, self.ledger.mark
        book = self.book()
        sound = not ledger.allow_unverified or verify.verify(ledger.root, seen=ledger.seen).ok
        return saved.saved(
            ledger.root,
            self.period,
            ledger.price_book,
            provenance=self.provenance,
            allow_unverified=ledger.allow_unverified,
            now_ns=self.now_ns,
            seen=ledger.seen,
            kept=ledger.runs.of((mark, book.sha256, book.chosen, sound), self.provenance),
        )

    def book(self) -> PriceBook:
        """The price book of the period's open hours. Raises what `choice.choose` does."""
        ledger, period = self.ledger, self.period
        return choice.choose(
            ledger.root, ledger.price_book, from_ns=period.from_ns, to_ns=period.to_ns, provenance=self.provenance
        )


def parts(ledgers: Sequence[Ledger], asked: PeriodQuery, now_ns: int) -> Iterator[Part]:
    """Each ledger and provenance apart: none is ever added to another. Raises RequestError, LedgerError."""
    for ledger in chosen(ledgers, asked.ledger):
        ledger.refuse_unverified()
        period, calendar = ledger.period(asked, now_ns)
        for provenance in ledger.provenances(period, asked.provenance):
            yield Part(ledger, period, calendar, provenance, now_ns)


def now() -> int:
    """UTC nanoseconds: the begin of this hour, so that what is asked within it has one answer."""
    return time.time_ns() // 3_600_000_000_000 * 3_600_000_000_000


Clock = Callable[[], int]
