"""What the pages on the whole ledger read: bills of periods, closes, budgets and days that stand out.

Each is kept until something that it depends on changes: the ledger, the price book, frozen files, the hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from dashboard import data
from dashboard.data import Priced, ReadError
from rose.ledger import catalog
from rose.pricing import alerts, charges
from rose.pricing.audit import check
from rose.pricing.audit.check import Check
from rose.pricing.closing import bill as bills
from rose.pricing.closing import period, records, statement, store
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.period import NS_PER_DAY, Period
from rose.pricing.closing.records import Posting
from rose.pricing.closing.statement import Statement
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.watch import anomaly, budget
from rose.pricing.watch.anomaly import Watch
from rose.pricing.watch.budget import TeamBudget

AMORTIZED, FULLY_LOADED = statement.VIEWS


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a bill is asked for; `unverified`: also of a ledger that does not verify."""

    ledger: Path
    period: Period
    book: PriceBook
    provenance: str
    unverified: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Names it for a cache, with all it depends on beside the ledger."""
        named = (self.period, *data.book_key(self.book), self.provenance, self.unverified)
        return *named, _frozen(self.ledger)


def span(ledger: Path) -> Period | None:
    """The whole UTC days in which devices were there; None where none ever was."""
    bounds_ns = data.span_ns(ledger)
    if bounds_ns is None:
        return None
    return Period(
        bounds_ns[0] // NS_PER_DAY * NS_PER_DAY, (max(bounds_ns[1] - 1, bounds_ns[0]) // NS_PER_DAY + 1) * NS_PER_DAY
    )


def months(spanned: Period, now: datetime) -> list[Period]:
    """The months of a period and the current one, newest first."""
    listed = [period.month_at(spanned.from_ns)]
    while listed[-1].to_ns < spanned.to_ns:
        listed.append(period.month_at(listed[-1].to_ns))
    return sorted({*listed, this_month(now)}, reverse=True)


def this_month(now: datetime) -> Period:
    """The month of a UTC time."""
    return period.month_at(period.nanoseconds(now))


def provenances(ledger: Path, spanned: Period) -> list[str]:
    """What the runs and the closes of a period are: live, replay or simulated. Raises ReadError."""

    def read() -> list[str]:
        with catalog.connect(ledger) as connection:
            set_variables(connection, from_ns=spanned.from_ns, to_ns=spanned.to_ns)
            kept = {str(row["provenance"]) for row in rows(connection, "closing/provenances")}
        closed = (posted[0] for posted in records.postings(ledger).values())
        return sorted(kept | {first.provenance for first in closed if first.period.overlaps(spanned)})

    kept = data.kept(read, ledger, "provenances", spanned)
    if kept.value is None:
        raise ReadError(kept.error)
    return kept.value


def bill(asked: Asked) -> Priced[Bill]:
    """The bill of a period: closed hours as they were closed and corrected, open ones at the book's prices."""
    return data.kept(
        lambda: bills.bill(
            asked.ledger,
            asked.period,
            asked.book,
            provenance=asked.provenance,
            allow_unverified=asked.unverified,
            seen=data.seen(str(asked.ledger)),
        ),
        asked.ledger,
        "bill",
        *asked.key,
        large=True,
    )


def loaded(asked: Asked, billed: Bill) -> pl.DataFrame:
    """The rows of the bill that `of` got, fully loaded."""
    priced = data.kept(lambda: charges.fully_load(billed.frame), asked.ledger, "loaded", *asked.key, large=True)
    assert priced.value is not None, priced.error
    return priced.value


def closes(ledger: Path) -> Priced[dict[str, list[Posting]]]:
    """Every close with its corrections, as the ledger's events say."""
    return data.kept(lambda: records.postings(ledger), ledger, "closes")


def stated(ledger: Path, close_id: str, by: Sequence[str], view: str, as_of_ns: int | None) -> Priced[Statement]:
    """A close as it is known now, or was at a time. Its files are read again when one of them was touched."""
    return data.kept(
        lambda: statement.state(store.read(ledger, close_id, as_of_ns), by, view),
        ledger,
        "stated",
        close_id,
        by,
        view,
        as_of_ns,
        _frozen(ledger),
        large=True,
    )


def checked(ledger: Path) -> Priced[Check]:
    """Every frozen byte compared with the ledger; never from a cache."""
    return data.attempt(lambda: check.check(ledger))


def budgets(asked: Asked) -> Priced[list[TeamBudget]]:
    """Budgets of a month beside what was spent; none where none is set. A forecast holds for an hour at most."""

    def show() -> list[TeamBudget]:
        if not budget.budgets(asked.ledger, asked.period):
            return []
        return budget.show(
            asked.ledger, asked.period, asked.book, provenance=asked.provenance, allow_unverified=asked.unverified
        )

    return data.kept(show, asked.ledger, "budgets", *asked.key, f"{datetime.now(UTC):%Y-%m-%dT%H}")


def watched(asked: Asked) -> Priced[Watch]:
    """Days of a period, all of them over, that cost other than the days before them."""
    begin_ns = asked.period.from_ns - anomaly.DAYS_BEFORE * NS_PER_DAY
    whole_bill = bill(replace(asked, period=Period(begin_ns, asked.period.to_ns)))
    if whole_bill.value is None:
        return Priced(None, whole_bill.error)
    billed = whole_bill.value
    return data.kept(lambda: anomaly.watch(billed, asked.period), asked.ledger, "watched", *asked.key)


def alerting(ledger: Path) -> Priced[list[alerts.Entry]]:
    """Return the alerts that hold by the last round. Not kept: a round changes no event."""
    return data.attempt(lambda: alerts.entries(ledger))


def over(spanned: Period, now: datetime) -> Period | None:
    """The days of a period that are over; None where none is."""
    today_ns = period.of_day(now.date()).from_ns
    return None if spanned.from_ns >= today_ns else Period(spanned.from_ns, min(spanned.to_ns, today_ns))


def _frozen(ledger: Path) -> tuple[tuple[str, int, int], ...]:
    """Names a state of the closes' files: a file that was touched is read, and found out, again."""
    home = ledger / store.FOLDER
    files = sorted(path for path in home.rglob("*") if path.is_file()) if home.exists() else []
    return tuple((str(path.relative_to(home)), (at := path.stat()).st_mtime_ns, at.st_size) for path in files)
