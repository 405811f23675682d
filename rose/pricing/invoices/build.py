"""From the books, or from the ledger as it is now, to the invoice of every team for a period."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rose.clock import utc_us
from rose.errors import did_you_mean
from rose.ledger import catalog, layout
from rose.pricing.charges import NothingChargedError
from rose.pricing.charges.sums import exact
from rose.pricing.closing import bill, charge_algebra, coverage, store
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.period import Period
from rose.pricing.closing.records import Posting, postings
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.invoices.invoice import UNITS, Invoice, Line, RunLabel, order
from rose.pricing.money import PricingError
from rose.pricing.price_books import choice
from rose.pricing.price_books.choice import NoPriceBookError
from rose.pricing.price_books.entries import day_of
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError
from rose.pricing.query import rows, set_variables
from rose.pricing.spend import rules, sums
from rose.pricing.spend.cost import tags_of
from rose.pricing.spend.currency import OWN, Rate, last_day_ns, rate_of
from rose.pricing.spend.gather import Gathered

_KEYS = ("team", "run_id", "bucket", "kind", "pool", "device_class", "commitment", "route")
_COUNTS = {"capacity": "ns", "transfer": "bytes", "energy": "energy_mw_ns"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Charged:
    """The charges of a period as they are invoiced; `later` was posted to their close since."""

    frame: pl.DataFrame
    book: PriceBook
    #: Its parts with what priced each: of a draft, the closes that have a part of it too.
    priced_by: tuple[tuple[Period, Posting | PriceBook], ...]
    stamp: Stamp
    close: Posting | None
    made_ns: int
    later: pl.DataFrame
    #: Closes that have hours of it since.
    again: tuple[str, ...] = ()
    #: Whether a correction was posted to the close, if one of rules alone.
    corrected: bool = False


def invoices(
    root: Path,
    period: Period,
    price_book: str | None = None,
    *,
    currency: str = OWN,
    provenance: str | None = None,
    allow_unverified: bool = False,
    now_us: int | None = None,
) -> tuple[Invoice, ...]:
    """The invoices of a period, by team, one of what is unallocated at the end.

    Their charges sum to the close exactly, and these with what was posted since to its restated total. Corrections of
    earlier periods count where they were posted within this one, and are all that there is where it has no charge;
    shared costs and credits as the period was closed.
    `price_book` prices a period that is not closed, and has its rate of exchange; a close has both itself.

    Raises PricingError for a period that was closed in other parts, that has no charge, or more than one provenance
    (unless one is chosen), and for a ledger that did not verify; PriceBookError; LedgerError.
    """
    root = layout.check(root)
    charged = _charged(root, period, price_book, provenance, allow_unverified, now_us)
    stamp, book = charged.stamp, charged.book
    lines: defaultdict[str, list[Line]] = defaultdict(list)
    ruled = _ruled(root, period, charged, allow_unverified)
    for team, line in (*_charges(charged.frame), *_corrections(root, period, charged), *ruled):
        lines[team].append(line)
    posted = [line.posting for own in lines.values() for line in own if line.posting is not None]
    if doubtful := {posting.name for posting in posted if not posting.verified}:
        _refuse_unverified(", ".join(sorted(doubtful)), allow_unverified)
        stamp = dataclasses.replace(stamp, verified=False)
    later = _by_team(charged.later)
    labels = _labels(root, stamp.provenance)
    made = [
        Invoice(
            team=team,
            period=period,
            stamp=stamp,
            lines=tuple(lines[team]),
            runs={run_id: labels[run_id] for run_id in _run_ids(lines[team]) if run_id in labels},
            close=charged.close,
            made_ns=charged.made_ns,
            issuer=book.issuer,
            contact=book.contact,
            later_nano=later.get(team, 0),
            corrected=charged.corrected,
            closed_again_in=charged.again,
        )
        for team in sorted(lines.keys() | later.keys(), key=order)
    ]
    if not made:
        raise NothingChargedError(f"{period.label} has no charge and no correction that comes to anything to invoice")
    return _converted(made, _rate(charged, currency, period))


def of_team(made: Sequence[Invoice], team: str) -> Invoice:
    """The invoice of one team. Raises PricingError for a team that has none."""
    for invoice in made:
        if invoice.team == team:
            return invoice
    period = made[0].period.label if made else "the period"
    raise PricingError(
        f"no charge of {period} has team {team!r}{did_you_mean(team, {invoice.team for invoice in made})}"
    )


def _charged(
    root: Path,
    period: Period,
    price_book: str | None,
    provenance: str | None,
    allow_unverified: bool,
    now_us: int | None,
) -> _Charged:
    posted = postings(root)
    same = [first for first, *_ in posted.values() if first.period == period and provenance in (None, first.provenance)]
    if same:
        own_provenance = bill.one_provenance(root, {first.provenance for first in same}, provenance, period)
        closed = store.read(root, next(first.close_id for first in same if first.provenance == own_provenance))
        if not closed.verified:
            _refuse_unverified(closed.close_id, allow_unverified)
        close = closed.posted[0]
        return _Charged(
            frame=closed.charges.frame,
            book=closed.book,
            priced_by=((period, closed.book),),
            stamp=closed.stamp,
            close=close,
            made_ns=close.posted_ns,
            later=closed.corrections,
            again=_later_closes(posted, close),
            corrected=len(closed.posted) > 1,
        )
    now_ns = 1000 * (utc_us() if now_us is None else now_us)
    try:
        book = choice.choose(root, price_book, from_ns=period.from_ns, to_ns=period.to_ns, provenance=provenance)
        made = bill.bill(root, period, book, provenance=provenance, allow_unverified=allow_unverified)
    except (NothingChargedError, NoPriceBookError) as error:
        corrected = None
        # What no book prices is not left off.
        if isinstance(error, NothingChargedError) or not _has_devices(root, period):
            corrected = _only_corrected(root, posted, period, price_book, provenance, now_ns)
        if corrected is None:
            raise
        return corrected
    closes = {close_id: posted[close_id][0].period for close_id in made.closes}
    if not period.without(closes.values()):
        raise PricingError(
            f"{period.label} was closed as {', '.join(closes)}, and an invoice is of one close: invoice the period of "
            "each, or close the whole"
        )
    frame, facts = made.frame, made.stamp.book
    # Shared costs rest on it where no hour does.
    stamp = dataclasses.replace(made.stamp, book=dataclasses.replace(facts, example=facts.example or book.example))
    return _Charged(
        frame=frame, book=book, priced_by=made.priced_by, stamp=stamp, close=None, made_ns=now_ns, later=frame.clear()
    )


def _has_devices(root: Path, period: Period) -> bool:
    with catalog.connect(root) as connection:
        set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
        return bool(rows(connection, "closing/provenances"))


def _only_corrected(
    root: Path,
    posted: Mapping[str, list[Posting]],
    period: Period,
    price_book: str | None,
    provenance: str | None,
    now_ns: int,
) -> _Charged | None:
    """A period that has no charge, for the corrections posted within it; None where there are none."""
    within = [
        posting
        for own in posted.values()
        for posting in own[1:]
        if period.from_ns <= posting.posted_ns < period.to_ns and provenance in (None, posting.provenance)
    ]
    if not within:
        return None
    # What the corrections were priced by, where nobody names a book.
    book = choice.choose(root, price_book) if price_book else store.book_of(root, within[-1])
    facts = dataclasses.replace(BookFacts.from_book(book), example=any(posting.book.example for posting in within))
    own_provenance = bill.one_provenance(root, {posting.provenance for posting in within}, provenance, period)
    frame = sums.frozen(root, within[-1]).clear()
    charged = _Charged(
        frame=frame,
        book=book,
        priced_by=(),
        close=None,
        made_ns=now_ns,
        later=frame,
        stamp=Stamp(from_ns=period.from_ns, to_ns=period.to_ns, provenance=own_provenance, book=facts, verified=True),
    )
    return charged if any(_corrections(root, period, charged)) else None


def _later_closes(posted: Mapping[str, list[Posting]], close: Posting) -> tuple[str, ...]:
    after = list(posted)[list(posted).index(close.close_id) + 1 :]
    firsts = (posted[close_id][0] for close_id in after)
    return tuple(
        first.close_id
        for first in firsts
        if first.provenance == close.provenance and first.period.overlaps(close.period)
    )


def _refuse_unverified(name: str, allow_unverified: bool) -> None:
    if not allow_unverified:
        raise PricingError(
            f"{name} was made from a ledger that did not verify; `--allow-unverified` invoices it, marked so"
        )


def _charges(frame: pl.DataFrame) -> Iterator[tuple[str, Line]]:
    """Team and line: a run's together, the dearest run and the dearest line of it first."""
    summed = (
        frame.with_columns(_team())
        .group_by(_KEYS)
        .agg(*map(exact, (*_COUNTS.values(), "cost_nano")), amounts=pl.len())
        # What is free is no line, but for time: a team sees all of its own.
        .filter((pl.col("cost_nano") != 0) | (pl.col("ns") != 0))
        .with_columns(run_nano=pl.col("cost_nano").sum().over("team", "run_id"))
        .sort("run_nano", "run_id", "cost_nano", *_KEYS, descending=[True, False, True, *(False for _ in _KEYS)])
    )
    for row in summed.iter_rows(named=True):
        kind = row["kind"]
        detail = (row["route"] or row["device_class"], row["pool"] and f"{row['pool']} pool", row["commitment"])
        yield (
            row["team"],
            Line(
                kind="charge",
                what=row["bucket"],
                amount_nano=row["cost_nano"],
                run_id=row["run_id"],
                detail=", ".join(filter(None, detail)),
                count=row[_COUNTS[kind]],
                unit=UNITS[kind][0],
                amounts=row["amounts"],
            ),
        )


def _corrections(root: Path, period: Period, charged: _Charged) -> Iterator[tuple[str, Line]]:
    """Team and line of what was posted within a period to hours before it, by posting and bucket."""
    posted = {
        close_id: own
        for close_id, own in postings(root).items()
        if charged.close is None or own[0].posted_ns <= charged.close.posted_ns
    }
    for posting, before in coverage.corrections_in(posted, period, charged.stamp.provenance):
        frozen = sums.frozen(root, posting)
        frame = pl.concat(coverage.within(frozen, part) for part in before)
        summed = frame.with_columns(_team()).group_by("team", "bucket").agg(pl.col("cost_nano").sum())
        for team, bucket, nano in summed.filter(pl.col("cost_nano") != 0).sort("team", "bucket").iter_rows():
            yield (
                team,
                Line(kind="correction", what=bucket, amount_nano=nano, detail=posting.reason or "", posting=posting),
            )


def _ruled(root: Path, period: Period, charged: _Charged, allow_unverified: bool) -> Iterator[tuple[str, Line]]:
    """Team and line of the shared costs and credits of the price books, by what a close was closed with."""
    gathered = Gathered(
        period=period,
        files=(),
        frames=(("closed", charged.frame),),
        stamp=charged.stamp,
        closes={},
        open=(),
        priced_by=charged.priced_by,
    )
    ruled = rules.of_gathered(
        root,
        gathered,
        allow_unverified=allow_unverified,
        as_closed_ns=None if charged.close is None else charged.close.posted_ns,
        now_us=charged.made_ns // 1000,
    )
    for share in ruled.shares:
        if share.nano:
            yield share.team, Line(kind="shared", what=share.name, amount_nano=share.nano, detail=share.rule)
    for row in ruled.credits:
        if row.nano:
            yield row.team, Line(kind="credit", what=row.name, amount_nano=row.nano)


def _rate(charged: _Charged, currency: str, period: Period) -> Rate | None:
    try:
        return rate_of(charged.book, currency, period)
    except PriceBookError:
        if charged.close is None:
            raise
        known = ", ".join(sorted({OWN, *(entry.currency for entry in charged.book.exchange_rate)}))
        raise PricingError(
            f"no rate of exchange for {currency} on {day_of(last_day_ns(period))} is in the price book that was frozen "
            f"with {charged.close.close_id}, and no other converts its invoices (currencies it has: {known})"
        ) from None


def _converted(made: Sequence[Invoice], rate: Rate | None) -> tuple[Invoice, ...]:
    """In another currency, all amounts of a period together."""
    if rate is None:
        return tuple(made)
    amounts = iter(rate.convert_together([line.amount_nano for invoice in made for line in invoice.lines]))
    return tuple(
        dataclasses.replace(
            invoice,
            lines=tuple(dataclasses.replace(line, amount_nano=next(amounts)) for line in invoice.lines),
            later_nano=rate.convert(invoice.later_nano),
            stamp=rate.stamp(invoice.stamp),
            rate=rate,
        )
        for invoice in made
    )


def _team() -> pl.Expr:
    return pl.col("team").fill_null(UNALLOCATED)


def _by_team(frame: pl.DataFrame) -> dict[str, int]:
    return {row["team"]: row["cost_nano"] for row in charge_algebra.drill(frame, ["team"])}


def _run_ids(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line.run_id for line in lines if line.run_id is not None))


def _labels(root: Path, provenance: str) -> dict[str, RunLabel]:
    with catalog.connect(root) as connection:
        set_variables(connection, provenance=provenance)
        tags = {row["run_id"]: tags_of(row["tags_json"]) for row in rows(connection, "spend/run_tags")}
        named = connection.execute("SELECT run_id, name FROM run WHERE provenance = ?", [provenance]).fetchall()
    return {run_id: RunLabel(name=name or "", tags=tags.get(run_id, {})) for run_id, name in named}
