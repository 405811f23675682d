"""Savings of borrowing in a period: cash saved and capacity avoided, by fleet, team and run; never added. A run counts
whole in the period in which it ended, or in the current one, so consecutive periods have each run once."""

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rose.clock import utc, utc_us
from rose.errors import did_you_mean
from rose.ledger import catalog, layout, verify
from rose.ledger.examine import Seen
from rose.pricing.borrowing.report import ADDED, CAPACITY, CASH, WOULD, WOULD_NOT, saved_in_run
from rose.pricing.charges import preconditions
from rose.pricing.closing.bill import one_provenance
from rose.pricing.closing.period import Period
from rose.pricing.figures import AMORTIZED, MARGINAL, BookFacts, Figure
from rose.pricing.money import NothingChargedError, PricingError, QuestionError, format_money, nano_usd_of
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.run.heard import SILENT, silent
from rose.pricing.run.priced import priced

NO_INTERVAL = (
    "runs share what is uncertain, such as a price, so the intervals of several do not add up to one of the sum"
)
LET_GO = "dedicated devices of the fleet that recorded decisions let go: they are no RL run's"
ENDS = ("if_there_anyway", "if_not")  # Both ends of the cash saved, in order.
Ends = tuple[int, int | None]  # An interval, nano-dollars; None is unbounded.


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSaved:
    """One run, nano-dollars; None if unknown: see `why`. The fleet's own run, if RL runs share it, counts only devices
    let go. `cash_nano`: the ends of the cash saved with the fleet there anyway, and without; equal for one figure."""

    run_id: str
    team: str
    status: str
    why: str | None
    capacity_nano: int | None = None
    cash_nano: tuple[int, int] | None = None
    added_nano: int | None = None
    cash_interval: Ends | None = None  # 95% of the cash saved where that is one figure.
    verified: bool | None = None  # None where nothing is known of the run.
    book: BookFacts | None = None
    no_interval: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    period: Period
    provenance: str
    runs: tuple[RunSaved, ...]

    @property
    def two_ends(self) -> bool:
        return any(run.cash_nano is not None and run.cash_nano[0] != run.cash_nano[1] for run in self.runs)

    @property
    def teams(self) -> tuple[str, ...]:
        return tuple(sorted({run.team for run in self.runs}))

    @property
    def book(self) -> BookFacts | None:
        """The first known run's prices; `example` if any run's are."""
        books = [run.book for run in self.runs if run.book is not None]
        return replace(books[0], example=any(book.example for book in books)) if books else None

    @property
    def verified(self) -> bool:
        return all(run.verified is not False for run in self.runs)

    def of_team(self, team: str | None) -> list[RunSaved]:
        return [run for run in self.runs if team in (None, run.team)]

    def to_json(self) -> dict[str, Any]:
        """Return whole nano-dollars; `cash_saved_nano` has both ends by `ENDS`."""
        return {
            "period": {"from": utc(self.period.from_ns), "to": utc(self.period.to_ns)},
            "provenance": self.provenance,
            "currency": self.book and self.book.currency,
            "example_prices": self.book and self.book.example,
            "verified": self.verified,
            "views": {"capacity_avoided": f"{AMORTIZED}, hypothetical", "cash_saved": MARGINAL},
            "no_interval": NO_INTERVAL if len(self.runs) > 1 else None,
            "fleet": summed(self.runs),
            "teams": {team: summed(self.of_team(team)) for team in self.teams},
            "runs": [
                {
                    "run": run.run_id,
                    "team": run.team,
                    "status": run.status,
                    "capacity_avoided_nano": run.capacity_nano,
                    "cash_saved_nano": _by_end(run.cash_nano),
                    "added_nano": run.added_nano,
                    "why": run.why,
                }
                for run in self.runs
            ],
        }


def saved(
    root: Path,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    team: str | None = None,
    run_id: str | None = None,
    provenance: str | None = None,
    allow_unverified: bool = False,
    now_ns: int | None = None,
    seen: Seen | None = None,
    kept: MutableMapping[str, RunSaved] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Saved:
    """Return the runs of a period with what each saved. `progress` gets runs done and their number; `seen` is for
    `verify`; `kept` caches runs of one ledger and book by id. Raises NothingChargedError if no run counts in the
    period; QuestionError for an unknown run or team; PricingError for several provenances (unless one is chosen) or
    several price books; LedgerError."""
    root = layout.check(root)
    now_ns = utc_us() * 1000 if now_ns is None else now_ns
    preconditions.refuse_archived_since(root, period.from_ns)
    with catalog.connect(root) as connection:
        set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
        present = {str(row["provenance"]) for row in rows(connection, "closing/provenances")}
        provenance = one_provenance(root, present, provenance, period)
        set_variables(connection, provenance=provenance)
        counted = rows(connection, "spend/runs")
    # RL runs borrow on a shared fleet: the fleet's own run counts whole only if chosen by name.
    counted = [row for row in counted if not row["shared"] or row["let_go"] or row["run_id"] == run_id]
    counted = [row for row in counted if _counts(row, period, provenance, now_ns)]
    if not counted:
        raise NothingChargedError(
            f"no run of {period.label} ({provenance}) has ended in it or goes on now, so nothing was saved"
        )
    for option, column, value in (("run", "run_id", run_id), ("team", "team", team)):
        known = {str(row[column]) for row in counted}
        if value is not None and value not in known:
            raise QuestionError(
                f"no run that counts in {period.label} has {option} {value!r}{did_you_mean(value, known)}"
            )
        counted = [row for row in counted if value in (None, row[column])]
    book = choice.choose(
        root, price_book, run_id=run_id, from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance
    )
    kept = {} if kept is None else kept
    runs = []
    for number, row in enumerate(counted):
        progress(number, len(counted))
        let_go_alone = row["shared"] and row["run_id"] != run_id
        key = f"{row['run_id']}/let_go" if let_go_alone else row["run_id"]
        if key not in kept:
            kept[key] = _of_run(root, row, book, seen, allow_unverified=allow_unverified, let_go_alone=let_go_alone)
        runs.append(replace(kept[key], status=row["status"]))  # The status may have changed since the run was kept.
    return Saved(period=period, provenance=provenance, runs=tuple(runs))


def _counts(row: dict[str, Any], period: Period, provenance: str, now_ns: int) -> bool:
    """Return whether a run counts: where it ended or fell silent, else now. Sets `row["status"]` of a silent run."""
    at_ns, last_us = now_ns, int(row["last_event_us"])
    if silent(
        status=row["status"],
        provenance=provenance,
        heard_us=int(row["heard_us"]),
        expires_s=row["expires_s"],
        now_us=now_ns // 1000,
    ):
        row["status"], at_ns = SILENT, 1000 * last_us
    return row["status"] not in ("running", SILENT) or period.from_ns <= at_ns < period.to_ns


def summed(runs: Iterable[RunSaved]) -> dict[str, Any]:
    every = list(runs)
    capacity = [run.capacity_nano for run in every if run.capacity_nano is not None]
    cash = [run.cash_nano for run in every if run.cash_nano is not None]
    return {
        "capacity_avoided_nano": sum(capacity) if capacity else None,
        "cash_saved_nano": _by_end(
            (sum(kept for kept, _ in cash), sum(let_go for _, let_go in cash)) if cash else None
        ),
        "runs": len(every),
        "runs_unknown": sum(run.capacity_nano is None or run.cash_nano is None for run in every),
    }


def cash_text(ends: Sequence[int] | None, currency: str = "USD") -> str:
    """Return `$1.20`, or `$1.20 or -$3.00` in the order of ENDS."""
    if ends is None:
        return "not known"
    return " or ".join(dict.fromkeys(format_money(end, currency) for end in ends))


def _by_end(ends: tuple[int, int] | None) -> dict[str, int] | None:
    return None if ends is None else dict(zip(ENDS, ends, strict=True))


def _of_run(
    root: Path, row: dict[str, Any], book: PriceBook, seen: Seen | None, *, allow_unverified: bool, let_go_alone: bool
) -> RunSaved:
    """Unknown if it cannot be priced. Raises LedgerError, and PricingError for an unverified ledger."""
    try:
        if let_go_alone:
            return _let_go(root, row, book, seen, allow_unverified=allow_unverified)
        table = saved_in_run(root, row["run_id"], book, allow_unverified, seen=seen)
    except PricingError as error:
        if not allow_unverified and not verify.verify(root, seen=seen).ok:
            raise
        return RunSaved(**_names(row), why=str(error))
    figures: dict[str, Figure] = {name: figure for name, figure, _ in table.rows}
    capacity, cash, added = figures[CAPACITY], figures[CASH], figures[ADDED]
    ends = [figures.get(f"{CASH} {end}", cash) for end in (WOULD, WOULD_NOT)]
    amounts = [int(end.value) for end in ends if end.value is not None]
    return RunSaved(
        **_names(row),
        capacity_nano=None if capacity.value is None else int(capacity.value),
        cash_nano=(amounts[0], amounts[1]) if len(amounts) == 2 else None,
        why=capacity.why or (None if amounts else cash.why),
        verified=capacity.stamp.verified,
        book=capacity.stamp.book,
        added_nano=None if added.value is None else int(added.value),
        cash_interval=_interval(cash),
        no_interval=cash.no_interval,
    )


def _let_go(root: Path, row: dict[str, Any], book: PriceBook, seen: Seen | None, *, allow_unverified: bool) -> RunSaved:
    with priced(root, row["run_id"], book, allow_unverified, seen) as run:
        nano = nano_usd_of(run.borrow.let_go_usd)
        return RunSaved(
            **_names(row),
            capacity_nano=0,
            cash_nano=(nano, nano),
            why=LET_GO,
            added_nano=0,
            verified=run.stamp.verified,
            book=run.stamp.book,
            no_interval="it is a price, and known exactly",
        )


def _names(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("run_id", "team", "status")}


def _interval(figure: Figure) -> Ends | None:
    return None if figure.low is None else (int(figure.low), None if figure.high is None else int(figure.high))
