"""What may be asked over HTTP, and the answers: those of the commands, from the functions that make them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rose.errors import UserError, did_you_mean
from rose.ledger import access, layout, verified, verify
from rose.ledger.examine import Seen
from rose.ledger.layout import LedgerError
from rose.pricing.closing import period as periods
from rose.pricing.closing.period import Period, month_at
from rose.pricing.money import NothingChargedError, QuestionError
from rose.pricing.price_books import choice
from rose.pricing.run import report
from rose.pricing.spend import cost, saved
from rose.pricing.spend.calendar import FORMS, Calendar
from rose.pricing.spend.cost import Cost
from rose.pricing.spend.saved import RunSaved, Saved
from rose.pricing.watch import budget

#: Most lines of an answer.
LINES_MAX = 10_000
_CHARACTERS_MAX = 500
_LEDGER_NAME = re.compile(r"[\w.-]{1,100}")
#: A problem's text is kept to so many characters, and so many problems are listed.
_PROBLEM_CHARACTERS, _PROBLEMS = 500, 20

Clock = Callable[[], int]
Text = Annotated[str, Field(min_length=1, max_length=_CHARACTERS_MAX)]


class RequestError(UserError):
    """A request that is refused. `status` is HTTP's; the message names the parameter and its value."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """A ledger that is served, and the price book of its open hours."""

    name: str
    root: Path
    price_book: str | None = None
    #: What was verified of it, so that a request reads new files only.
    seen: Seen = field(default_factory=Seen)
    #: What each run saved, which takes seconds to compute, by what it depends on.
    saved_runs: dict[object, dict[str, RunSaved]] = field(default_factory=dict)

    def cost(self, question: cost.Question) -> Cost:
        """As `rose cost`. Raises what `cost.ask` does."""
        return cost.ask(self.root, question, self.price_book, seen=self.seen)

    def saved(
        self,
        period: Period,
        now_ns: int,
        provenance: str | None = None,
        team: str | None = None,
        run_id: str | None = None,
    ) -> Saved:
        """As `rose saved`; a run is priced once until ledger or prices change. Raises what `saved.saved` does."""
        book = choice.choose(
            self.root, self.price_book, from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance
        )
        key = (self._mark, book.sha256, book.chosen, provenance)
        if key not in self.saved_runs:
            self.saved_runs.clear()
        return saved.saved(
            self.root,
            period,
            book,
            team=team,
            run_id=run_id,
            provenance=provenance,
            now_ns=now_ns,
            seen=self.seen,
            kept=self.saved_runs.setdefault(key, {}),
        )

    def trust(self) -> dict[str, Any]:
        """Up to when it was verified, and what is wrong with it now. Reads new files only. Raises LedgerError."""
        checked, last = verify.verify(self.root, seen=self.seen), verified.state(self.root)
        return {
            "sound": checked.ok,
            # A folder that cannot be written keeps no record.
            "verified": None if last is None else last.to_json(),
            "events": sum(writer.events for writer in checked.writers),
            "problem_count": len(checked.doubts),
            "problems": [problem[:_PROBLEM_CHARACTERS] for problem in checked.doubts[:_PROBLEMS]],
            "notes": [note[:_PROBLEM_CHARACTERS] for note in checked.notes[:_PROBLEMS]],
        }

    @property
    def _mark(self) -> str:
        """Names the newest segment of every writer but the access log: it changes when the ledger gains events."""
        heads = sorted((self.root / "heads").glob("[!.]*.json"))
        return "\n".join(f"{head.name} {head.read_text('utf-8')}" for head in heads if head.stem != access.WRITER)


class LedgerQuery(BaseModel):
    """What every answer is asked for."""

    model_config = ConfigDict(extra="forbid")

    ledger: Annotated[Text | None, Field(description="The ledger, where several are served.")] = None


class ProvenanceQuery(LedgerQuery):
    """What figures of several runs are asked for."""

    provenance: Annotated[
        Literal["live", "replay", "simulated"] | None,
        Field(description="Only figures of this provenance, where there are several."),
    ] = None
    team: Annotated[Text | None, Field(description="One team only.")] = None


class PeriodQuery(ProvenanceQuery):
    """What figures of a period are asked for."""

    period: Annotated[Text | None, Field(description=f"{FORMS}; else this-month.")] = None
    tz: Annotated[Text, Field(description="Days, weeks and months are those of this IANA time zone.")] = "UTC"
    run: Annotated[Text | None, Field(description="One run only.")] = None


class CostQuery(PeriodQuery):
    """As the options of `rose cost`."""

    by: Annotated[
        list[Text],
        Field(max_length=cost.DIMENSIONS_MAX, description=f"A dimension, repeated: {', '.join(cost.BY)}, tag:NAME."),
    ] = ["team"]
    tag: Annotated[Text | None, Field(description="Runs with a tag only, as NAME=VALUE.")] = None
    view: Annotated[Text, Field(description=f"{' or '.join(cost.VIEWS)}.")] = "amortized"
    close: Annotated[Text | None, Field(description="One close with its corrections, and no other hour.")] = None
    as_of: Annotated[Text | None, Field(description="The close as known at this UTC time.")] = None


class ForecastQuery(ProvenanceQuery):
    """As the options of `rose forecast`."""

    month: Annotated[Text | None, Field(description="A UTC month such as 2026-11; else this one.")] = None


class ReportQuery(LedgerQuery):
    """As the options of `rose report`."""

    run: Annotated[Text | None, Field(description="The run; else the newest with devices.")] = None


def answer_cost(ledger: Ledger, query: CostQuery, now_ns: int) -> dict[str, Any]:
    """What a period cost, divided by team, run, task ..."""
    options = query.model_dump(exclude={"ledger"})
    answer = ledger.cost(cost.question(ledger.root, now_ns=now_ns, **options))
    if len(answer.lines) > LINES_MAX:
        raise RequestError(
            f"parameter by is {query.by}: the answer has more than {LINES_MAX:,} lines; ask for a shorter period, or "
            "fewer dimensions"
        )
    return answer.to_json()


def answer_saved(ledger: Ledger, query: PeriodQuery, now_ns: int) -> dict[str, Any]:
    """What borrowing saved in a period, of the fleet, and by team and run."""
    period = Calendar(query.tz).period(query.period or "this-month", now_ns)
    return ledger.saved(period, now_ns, query.provenance, query.team, query.run).to_json()


def answer_forecast(ledger: Ledger, query: ForecastQuery, now_ns: int) -> dict[str, Any]:
    """What a month will have cost when it is over, of the fleet and of every team."""
    month = month_at(now_ns) if query.month is None else periods.of_month(query.month)
    rows = budget.expected(
        ledger.root, month, ledger.price_book, query.team, provenance=query.provenance, now_us=now_ns // 1000
    )
    return {"month": month.label, "rows": [row.to_json() for row in rows]}


def answer_report(ledger: Ledger, query: ReportQuery, now_ns: int) -> dict[str, Any]:
    """The cost report of a run."""
    return report.build(ledger.root, query.run, ledger.price_book, seen=ledger.seen).to_json()


def answer_trust(ledger: Ledger, query: LedgerQuery, now_ns: int) -> dict[str, Any]:
    """Whether the ledger is sound, and up to when it was verified."""
    return ledger.trust()


def named(given: Sequence[str], price_book: str | None) -> list[Ledger]:
    """The ledgers of FOLDER or NAME=FOLDER; a folder is called by its own name. Raises LedgerError."""
    ledgers: dict[str, Ledger] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not _LEDGER_NAME.fullmatch(name):
            name, folder = Path(text).resolve().name, text
        if name in ledgers:
            raise LedgerError(f"two ledgers are called {name!r}: name one of them, as in NAME={folder}")
        ledgers[name] = Ledger(name=name, root=layout.check(folder), price_book=price_book)
    return list(ledgers.values())


def chosen(ledgers: Iterable[Ledger], name: str | None) -> Ledger:
    """The ledger of that name, or the only one. Raises RequestError."""
    known = {ledger.name: ledger for ledger in ledgers}
    if name is None and len(known) > 1:
        raise RequestError(f"give the parameter ledger, one of {', '.join(known)}")
    if name is not None and name not in known:
        raise RequestError(f"parameter ledger is {name!r}: there is none{did_you_mean(name, known)}", 404)
    return next(iter(known.values())) if name is None else known[name]


def now() -> int:
    """UTC nanoseconds: the begin of this hour, so that what is asked within it has one answer."""
    return time.time_ns() // 3_600_000_000_000 * 3_600_000_000_000


def status_of(error: UserError) -> int:
    """HTTP's status for what cannot be answered: what the ledger or its prices lack is no fault of the request."""
    if isinstance(error, RequestError):
        return error.status
    return 400 if isinstance(error, QuestionError) else 404 if isinstance(error, NothingChargedError) else 503
