"""The questions that a client asks over HTTP, and their answers."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rose.errors import UserError, did_you_mean
from rose.ledger import access, verified
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing import period as periods
from rose.pricing.answers import run_report
from rose.pricing.money import NothingChargedError, QuestionError
from rose.pricing.period import Period, month_at
from rose.pricing.price_books import pricebook
from rose.pricing.spend import cost, saved
from rose.pricing.spend.calendar import FORMS, Calendar
from rose.pricing.spend.saved import Saved, Whole
from rose.pricing.watch import budget

LINES_MAX = 10_000
_CHARACTERS_MAX = 500
_LEDGER_NAME = re.compile(r"[\w.-]{1,100}")
_PROBLEM_CHARACTERS, _PROBLEMS = 500, 20

Clock = Callable[[], int]
Text = Annotated[str, Field(min_length=1, max_length=_CHARACTERS_MAX)]


class RequestError(UserError):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedLedger:
    name: str
    ledger: Ledger
    price_book: str | None = None
    #: Each run's savings, by their inputs.
    saved_runs: dict[object, dict[str, Whole | None]] = field(default_factory=dict)

    def saved(
        self, period: Period, provenance: str | None = None, team: str | None = None, run_id: str | None = None
    ) -> Saved:
        """Return the answer of `rose saved`. A run is priced again only after the ledger or the prices changed."""
        book = pricebook.choose(self.ledger, self.price_book, period=period, provenance=provenance)
        # Heads change with every event. Events of the access log change no answer.
        heads = sorted((self.ledger.folder / "heads").glob("[!.]*.json"))
        mark = [(head.name, head.read_text("utf-8")) for head in heads if head.stem != access.WRITER]
        key = (*mark, book.sha256, book.chosen, provenance)
        if key not in self.saved_runs:
            self.saved_runs.clear()
        kept = self.saved_runs.setdefault(key, {})
        return saved.saved(self.ledger, period, book, team=team, run_id=run_id, provenance=provenance, kept=kept)


class LedgerQuery(BaseModel, extra="forbid"):
    ledger: Annotated[Text | None, Field(description="The ledger to read; needed if several are served.")] = None

    def answer(self, served: ServedLedger, now_ns: int) -> dict[str, Any]:
        raise NotImplementedError


class ProvenanceQuery(LedgerQuery):
    provenance: Annotated[
        Literal["live", "replay", "simulated"] | None,
        Field(description="Only figures of this provenance; needed if the period has several provenances."),
    ] = None
    team: Annotated[Text | None, Field(description="One team only.")] = None


class SavedQuery(ProvenanceQuery):
    period: Annotated[Text | None, Field(description=f"{FORMS}; by default this-month.")] = None
    tz: Annotated[Text, Field(description="The IANA time zone of days, weeks and months.")] = "UTC"
    run: Annotated[Text | None, Field(description="One run only.")] = None

    def answer(self, served: ServedLedger, now_ns: int) -> dict[str, Any]:
        period = Calendar(self.tz).period(self.period or "this-month", now_ns)
        return served.saved(period, self.provenance, self.team, self.run).to_json()


class CostQuery(SavedQuery):
    by: Annotated[
        list[Text],
        Field(max_length=cost.DIMENSIONS_MAX, description=f"One or more dimensions: {', '.join(cost.BY)}, tag:NAME."),
    ] = ["team"]
    tag: Annotated[Text | None, Field(description="Only runs with this tag, as NAME=VALUE.")] = None
    view: Annotated[Text, Field(description=f"{' or '.join(cost.VIEWS)}.")] = "amortized"
    close: Annotated[Text | None, Field(description="A single close with its corrections.")] = None
    as_of: Annotated[Text | None, Field(description="Only with `close`: the close as known at this UTC time.")] = None

    def answer(self, served: ServedLedger, now_ns: int) -> dict[str, Any]:
        question = cost.question(served.ledger, now_ns=now_ns, **self.model_dump(exclude={"ledger"}))
        answer = cost.ask(served.ledger, question, served.price_book)
        if len(answer.lines) > LINES_MAX:
            raise RequestError(
                f"parameter 'by' is {self.by}: the answer has more than {LINES_MAX:,} lines; ask for a shorter period, "
                "or fewer dimensions"
            )
        return answer.to_json()


class ForecastQuery(ProvenanceQuery):
    month: Annotated[Text | None, Field(description="A UTC month such as 2026-11; by default the current one.")] = None

    def answer(self, served: ServedLedger, now_ns: int) -> dict[str, Any]:
        month, now_us = month_at(now_ns) if self.month is None else periods.of_month(self.month), now_ns // 1000
        book, provenance = served.price_book, self.provenance
        rows = budget.expected(served.ledger, month, book, self.team, provenance=provenance, now_us=now_us)
        return {"month": month.label, "rows": [row.to_json() for row in rows]}


class ReportQuery(LedgerQuery):
    run: Annotated[Text | None, Field(description="The run; by default the newest run with devices.")] = None

    def answer(self, served: ServedLedger, now_ns: int) -> dict[str, Any]:
        return run_report.build(served.ledger, self.run, served.price_book).to_json()


class TrustQuery(LedgerQuery):
    def answer(self, served: ServedLedger, now_ns: int) -> dict[str, Any]:
        checked, last = served.ledger.verify(), verified.state(served.ledger.folder)
        return {
            "sound": checked.ok,
            "verified": None if last is None else last.to_json(),  # A folder that cannot be written keeps no record.
            "events": sum(writer.events for writer in checked.writers),
            "problem_count": len(checked.doubts),
            "problems": [problem[:_PROBLEM_CHARACTERS] for problem in checked.doubts[:_PROBLEMS]],
            "notes": [note[:_PROBLEM_CHARACTERS] for note in checked.notes[:_PROBLEMS]],
        }


def named(given: Sequence[str], price_book: str | None) -> list[ServedLedger]:
    """Return a named ledger for each item of `given`. An item is FOLDER or NAME=FOLDER. Raises LedgerError."""
    ledgers: dict[str, ServedLedger] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not _LEDGER_NAME.fullmatch(name):
            name, folder = Path(text).resolve().name, text
        if name in ledgers:
            raise LedgerError(f"two ledgers are called {name!r}: give one of them another name, as in NAME={folder}")
        ledgers[name] = ServedLedger(name=name, ledger=Ledger(folder), price_book=price_book)
    return list(ledgers.values())


def chosen(ledgers: Iterable[ServedLedger], name: str | None) -> ServedLedger:
    """Return the ledger called `name`. If `name` is None, return the only ledger. Raises RequestError."""
    known = {ledger.name: ledger for ledger in ledgers}
    if name is None and len(known) > 1:
        raise RequestError(f"give the parameter ledger, one of {', '.join(known)}")
    if name is not None and name not in known:
        raise RequestError(f"parameter ledger is {name!r}: unknown ledger{did_you_mean(name, known)}", 404)
    return next(iter(known.values())) if name is None else known[name]


def now() -> int:
    """Return the start of the current UTC hour in nanoseconds. Answers stay the same within an hour."""
    return time.time_ns() // 3_600_000_000_000 * 3_600_000_000_000


def status_of(error: UserError) -> int:
    if isinstance(error, RequestError):
        return error.status
    return 400 if isinstance(error, QuestionError) else 404 if isinstance(error, NothingChargedError) else 503
