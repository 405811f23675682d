"""The sums of a period: what its postings came to, and its open hours priced now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rose.ledger import catalog, layout
from rose.ledger.examine import Seen
from rose.pricing import charges
from rose.pricing.charges import NothingChargedError
from rose.pricing.closing.bill import one_provenance
from rose.pricing.closing.period import Period, naive
from rose.pricing.closing.records import Posting, postings
from rose.pricing.figures import Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.spend import sums

#: What a part of a bill is: as it was closed, corrected since, or priced now.
STATES: tuple[str, ...] = ("closed", "correction", "open")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """Sums of the hours of a period, and of hours around it: what closes have beside it is not cut off.

    `files` and `frames` have the columns of `sums`, by one of STATES.
    """

    period: Period
    files: tuple[tuple[str, Path], ...]
    frames: tuple[tuple[str, pl.DataFrame], ...]
    stamp: Stamp
    #: Closes that have a part of the period, with the number of corrections posted to each.
    closes: Mapping[str, int]
    #: Parts of the period that are not closed.
    open: tuple[Period, ...]

    @property
    def hours(self) -> pl.DataFrame:
        """Cost of each hour of the period and team: `hour`, `team`, `cost_nano` and `closed` (Boolean)."""
        columns = ("hour", "team", "cost_nano")
        period = pl.col("hour").is_between(naive(self.period.from_ns), naive(self.period.to_ns), closed="left")
        parts = [
            *((state, pl.scan_parquet(path)) for state, path in self.files),
            *((state, frame.lazy()) for state, frame in self.frames),
        ]
        summed = [
            part.select(columns).filter(period).group_by("hour", "team").agg(pl.col("cost_nano").sum())
            .with_columns(closed=pl.lit(state != "open"))
            for state, part in parts
        ]  # fmt: skip
        return pl.concat(summed).collect()


def gather(
    root: Path,
    period: Period,
    price_book: str | PriceBook | None = None,
    *,
    grain: sums.Grain = "hour",
    provenance: str | None = None,
    allow_unverified: bool = False,
) -> Gathered:
    """The sums of a period; `price_book` prices hours that are not closed, and is not asked for where all are.

    Raises PricingError where there is nothing to charge, for more than one provenance (unless one is chosen) or
    currency, and for open hours that cannot be priced; PriceBookError; LedgerError.
    """
    root = layout.check(root)
    posted, of = _posted(root, period, provenance)
    gaps = period.without(own[0].period for own in posted.values())
    currencies = {posting.book.currency for own in posted.values() for posting in own}
    verified = all(posting.verified for own in posted.values() for posting in own)
    files: list[tuple[str, Path]] = []
    frames: list[tuple[str, pl.DataFrame]] = []
    for posting in (posting for own in posted.values() for posting in own):
        made, state = sums.of_posting(root, posting, grain), STATES[min(posting.number, 1)]
        if isinstance(made, Path):
            files.append((state, made))
        else:
            frames.append((state, made))
    if gaps:
        book = price_book if isinstance(price_book, PriceBook) else pricebook.load(price_book or "example")
        currencies.add(book.currency)
        seen = Seen()
    for gap in gaps:
        try:
            priced = charges.price(
                root, book, from_ns=gap.from_ns, to_ns=gap.to_ns, provenance=of, allow_unverified=allow_unverified,
                seen=seen,
            )  # fmt: skip
        except NothingChargedError:
            continue
        verified &= priced.verified
        frames.append(("open", sums.summed(priced.frame, grain)))
    if not files and not frames:
        raise PricingError(f"no device time was provisioned in {period.label} ({of}), so nothing is charged")
    if len(currencies) > 1:
        raise PricingError(f"{period.label} is in {' and '.join(sorted(currencies))}: ask for each part by itself")
    return Gathered(
        period=period, files=tuple(files), frames=tuple(frames),
        stamp=Stamp(
            from_ns=period.from_ns, to_ns=period.to_ns, provenance=of, currency=currencies.pop(), verified=verified
        ),
        closes={close_id: len(own) - 1 for close_id, own in posted.items()}, open=tuple(gaps),
    )  # fmt: skip


def _posted(root: Path, period: Period, provenance: str | None) -> tuple[dict[str, list[Posting]], str]:
    """The closes that have a part of the period, of the one provenance that it has."""
    known = {close_id: own for close_id, own in postings(root).items() if own[0].period.overlaps(period)}
    present = {own[0].provenance for own in known.values()}
    if period.without(own[0].period for own in known.values()):
        with catalog.connect(root) as connection:
            set_variables(connection, from_ns=period.from_ns, to_ns=period.to_ns)
            present |= {str(row["provenance"]) for row in rows(connection, "closing/provenances")}
    of = one_provenance(present, provenance, period)
    return {close_id: own for close_id, own in known.items() if own[0].provenance == of}, of
