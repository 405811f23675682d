"""What borrowing saved in a period, in two figures that are never added: saved against buying, and capacity avoided.

Both figures are computed for a fleet, then divided among runs and periods. So the figures of runs or periods add up.
An RL run gets a share in proportion to its tokens, minus what its own borrowing added to the bill. The fleet's run gets
the rest. A period gets a share in proportion to the tokens borrowed in its hours."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from rose.clock import utc
from rose.errors import did_you_mean
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing.alternatives import compare
from rose.pricing.borrowing.comparison import NO_TOKENS
from rose.pricing.borrowing.savings import Alternative
from rose.pricing.charges.pricing import refuse_archived_since
from rose.pricing.closing import store
from rose.pricing.closing.bill import one_provenance
from rose.pricing.closing.store import postings
from rose.pricing.figures import AMORTIZED, MARGINAL, BookFacts, Stamp
from rose.pricing.marginal_cost.marginal import Marginal
from rose.pricing.money import NothingChargedError, PricingError, QuestionError, format_usd, nano_usd_of
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.run.priced import priced

NOT_ONE_RUN_S = "what no single RL run has: devices let go, costs known for the fleet only, and borrowing for no RL run"
SHARE = "it is a part of the fleet's figure, which has the interval"
SUM = "it adds up several fleets, each with an interval of its own"
ENDS = ("if_there_anyway", "if_not")  # Both ends of the saving, in order.
Ends = tuple[int, int | None]  # An interval, nano-dollars; None is unbounded.


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A run's comparison with dedicated devices, over the run's whole time. If fields are None, `why` says why."""

    way: Alternative | None = None
    borrow: Marginal | None = None
    stamp: Stamp | None = None
    why: str = NO_TOKENS


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodSaving:
    """The savings in a period, in nano-dollars. If they are None, `why` says why.

    `cash_nano`, the saving against buying, is `bought_nano` (dedicated devices) plus the price of devices let go, minus
    `added_nano` (borrowing). Of its two values, the first holds if the fleet would exist without leases, and
    the second if not (ENDS). They differ only if the price book does not state `idle_anyway`."""

    why: str | None = None
    capacity_nano: int | None = None
    cash_nano: tuple[int, int] | None = None
    bought_nano: int | None = None
    added_nano: int | None = None
    cash_interval: Ends | None = None  # 95% of the saving where that is one figure.
    no_interval: str | None = SHARE
    left_out: tuple[str, ...] = ()  # Unknown terms of the cost: the saving is at most this.

    def to_json(self) -> dict[str, Any]:
        return {
            "capacity_avoided_nano": self.capacity_nano,
            "cash_saved_nano": self.cash_nano and dict(zip(ENDS, self.cash_nano, strict=True)),
            "cash_saved_95_nano": self.cash_interval,
            "no_interval": self.no_interval,
            "would_have_cost_to_buy_nano": self.bought_nano,
            "added_nano": self.added_nano,
            "not_known": list(self.left_out),
            "why": self.why,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSaved:
    run_id: str
    team: str
    saving: PeriodSaving


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The savings of all fleets together (`fleet`) and of each run. Without filters, the runs sum to `fleet`."""

    period: Period
    provenance: str
    fleet: PeriodSaving
    runs: tuple[RunSaved, ...]
    book: BookFacts | None
    verified: bool

    @property
    def two_ends(self) -> bool:
        return self.fleet.cash_nano is not None and self.fleet.cash_nano[0] != self.fleet.cash_nano[1]

    @property
    def teams(self) -> tuple[str, ...]:
        return tuple(sorted({run.team for run in self.runs}))

    def of_team(self, team: str | None) -> PeriodSaving:
        return self.fleet if team is None else added_up(run.saving for run in self.runs if run.team == team)

    def to_json(self) -> dict[str, Any]:
        return {
            "period": {"from": utc(self.period.from_ns), "to": utc(self.period.to_ns)},
            "provenance": self.provenance,
            "currency": self.book and self.book.currency,
            "example_prices": self.book and self.book.example,
            "verified": self.verified,
            "views": {"capacity_avoided": f"{AMORTIZED}, hypothetical", "cash_saved": MARGINAL},
            "fleet": self.fleet.to_json(),
            "teams": {team: self.of_team(team).to_json() for team in self.teams},
            "runs": [{"run": run.run_id, "team": run.team, **run.saving.to_json()} for run in self.runs],
        }


def saved(
    ledger: Ledger,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    team: str | None = None,
    run_id: str | None = None,
    provenance: str | None = None,
    kept: MutableMapping[str, Whole | None] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Saved:
    """Return the savings of a period. `team` and `run_id` select runs. `kept` is a cache of results at one price book.

    `progress` receives the count of finished runs and of all runs. Raises NothingChargedError if there are no runs,
    QuestionError for an unknown run or team, PricingError if a price book or a provenance must be chosen."""
    refuse_archived_since(ledger, period.from_ns)
    provenance, found = _found(ledger, period, provenance, team, run_id)
    book = _book(ledger, period, price_book, provenance, run_id)
    kept = {} if kept is None else kept
    fleets = dict.fromkeys(row["fleet_run_id"] for row in found)
    asked = dict.fromkeys((*fleets, *(row["run_id"] for row in found)))
    for number, name in enumerate(asked):
        progress(number, len(asked))
        if name not in kept:
            kept[name] = _whole(ledger, name, book)
    wholes = {name: whole for name in asked if (whole := kept[name]) is not None}
    priced_fleets = [name for name in fleets if name in wholes]
    if not priced_fleets:
        raise NothingChargedError(f"no run of {period.label} ({provenance}) had a device, so there is no saving")
    every: list[RunSaved] = []
    of_fleets = {name: _within(wholes[name], period, alone=len(priced_fleets) == 1) for name in priced_fleets}
    for name, saving in of_fleets.items():
        own = [row for row in found if row["fleet_run_id"] == name and row["run_id"] in wholes]
        every += _shares(name, saving, own, {row["run_id"]: wholes[row["run_id"]] for row in own}, period)
    return Saved(
        period=period,
        provenance=provenance,
        fleet=added_up(of_fleets.values(), SUM) if len(of_fleets) > 1 else next(iter(of_fleets.values())),
        runs=tuple(run for run in every if team in (None, run.team) and run_id in (None, run.run_id)),
        book=next((whole.stamp.book for whole in wholes.values() if whole.stamp is not None), None),
        verified=all(whole.stamp.verified for whole in wholes.values() if whole.stamp is not None),
    )


def _book(
    ledger: Ledger, period: Period, price_book: str | PriceBook | None, provenance: str, run_id: str | None
) -> PriceBook:
    for *_, last in postings(ledger).values():
        if last.provenance == provenance and last.from_ns < period.to_ns <= last.to_ns:
            return store.book_of(ledger, last)
    return pricebook.choose(ledger, price_book, run_id=run_id, period=period, provenance=provenance)


def _found(
    ledger: Ledger, period: Period, provenance: str | None, team: str | None, run_id: str | None
) -> tuple[str, list[dict[str, Any]]]:
    with ledger.connect() as connection:
        set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
        present = {str(row["provenance"]) for row in rows(connection, "closing/provenances")}
        provenance = one_provenance(ledger, present, provenance, period)
        set_variables(connection, provenance=provenance)
        found = rows(connection, "spend/runs")
    if not found:
        raise NothingChargedError(f"no run of provenance {provenance} lies in {period.label}, so there is no saving")
    for option, column, value in (("run", "run_id", run_id), ("team", "team", team)):
        known = {str(row[column]) for row in found}
        if value is not None and value not in known:
            raise QuestionError(f"no run of {period.label} has {option} {value!r}{did_you_mean(value, known)}")
    fleets = {row["fleet_run_id"] for row in found if run_id in (None, row["run_id"])}
    return provenance, [row for row in found if row["fleet_run_id"] in fleets]


def _shares(
    fleet: str, saving: PeriodSaving, found: Iterable[Mapping[str, Any]], wholes: Mapping[str, Whole], period: Period
) -> Iterator[RunSaved]:
    team, shares = "unallocated", []
    for row in found:
        if row["run_id"] == fleet:
            team = row["team"]
            continue
        shares.append(_within(wholes[row["run_id"]], period, alone=False))
        yield RunSaved(run_id=row["run_id"], team=row["team"], saving=shares[-1])
    rest = _rest(saving, added_up(shares)) if shares else saving
    if rest is not None:
        yield RunSaved(run_id=fleet, team=team, saving=rest)


def _whole(ledger: Ledger, run_id: str, book: PriceBook) -> Whole | None:
    try:
        with priced(ledger, run_id, book) as run:
            return Whole(way=compare(run, market=False).way, borrow=run.borrow, stamp=run.stamp)
    except NothingChargedError:
        return None
    except PricingError as error:
        if not ledger.allow_unverified and not ledger.verify().ok:
            raise
        return Whole(why=str(error))


def _within(whole: Whole, period: Period, *, alone: bool) -> PeriodSaving:
    way, m = whole.way, whole.borrow
    if way is None or m is None or way.usd is None or way.bought is None or way.cash is None:
        return PeriodSaving(why=whole.why)
    share, bought_share = way.bought.within(period.from_ns, period.to_ns)
    bought_usd, interval = way.bought.usd * bought_share, way.cash.interval
    cash_usd = bought_usd + (m.let_go_usd - m.charged_usd) * share
    own = alone and share == 1
    cash_interval: Ends | None = None
    if own and interval is not None and not m.unstated_usd:
        cash_interval = round(interval.low * 10**9), None if interval.high is None else round(interval.high * 10**9)
    return PeriodSaving(
        capacity_nano=nano_usd_of(way.usd * share),
        cash_nano=(nano_usd_of(cash_usd), nano_usd_of(cash_usd - m.unstated_usd * share)),
        bought_nano=nano_usd_of(bought_usd),
        added_nano=nano_usd_of(m.charged_usd * share),
        cash_interval=cash_interval,
        no_interval=way.cash.no_interval if own else SHARE,
        left_out=(*m.missing, *m.absent),
    )


_AMOUNTS = ("capacity_nano", "bought_nano", "added_nano")


def added_up(savings: Iterable[PeriodSaving], no_interval: str = SHARE) -> PeriodSaving:
    every = list(savings)
    known = [saving for saving in every if saving.cash_nano is not None]
    unknown = len(every) - len(known)
    if not known:
        return PeriodSaving(why="; ".join(dict.fromkeys(saving.why for saving in every if saving.why)) or NO_TOKENS)
    return PeriodSaving(
        why=f"{unknown} of {len(every)} are not known" if unknown else None,
        cash_nano=_ends(sum(ends) for ends in zip(*(saving.cash_nano or () for saving in known), strict=True)),
        no_interval=no_interval,
        left_out=tuple(dict.fromkeys(name for saving in known for name in saving.left_out)),
        **{name: sum(getattr(saving, name) for saving in known) for name in _AMOUNTS},
    )


def _rest(whole: PeriodSaving, runs: PeriodSaving) -> PeriodSaving | None:
    if whole.cash_nano is None or runs.cash_nano is None:
        return whole
    cash = _ends(one - other for one, other in zip(whole.cash_nano, runs.cash_nano, strict=True))
    amounts = {name: getattr(whole, name) - getattr(runs, name) for name in _AMOUNTS}
    if not any((*cash, *amounts.values())):
        return None
    return PeriodSaving(why=NOT_ONE_RUN_S, cash_nano=cash, **amounts)


def _ends(ends: Iterable[int]) -> tuple[int, int]:
    there_anyway, if_not = ends
    return there_anyway, if_not


def cash_text(saving: PeriodSaving) -> str:
    """Return a text such as `$1.20`, `$1.20 or $0.90` (two values), or `$1.20 or less` (a cost is unknown)."""
    if saving.cash_nano is None:
        return "not known"
    ends = " or ".join(dict.fromkeys(format_usd(end) for end in saving.cash_nano))
    return f"{ends}{',' if ' ' in ends else ''} or less" if saving.left_out else ends
