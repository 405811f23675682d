"""What the documents on borrowing have in common."""

from __future__ import annotations

from dataclasses import dataclass

from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.document import RunFacts
from rose.pricing.figures import COUNT, MARGINAL, BookFacts, Figure, Figures, Stamp
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_HOUR
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Interval

NO_BORROW = "not enough data: no rollout ran on a serving device"
MILLION = 10**6
#: Two break-evens of the provision for a borrowed device-hour, by what it breaks even against: the device time of the
#: same work at the amortized price of dedicated devices, and what that work would have added to the bill.
BREAK_EVEN_TIME = "break-even provision against device time"
BREAK_EVEN_CASH = "break-even provision against cash"


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What every document begins with: the run, its stamp, and the price book."""

    stamp: Stamp
    run: RunFacts
    price_book: BookFacts


def head(run: PricedRun) -> Head:
    """The head of a document on a run."""
    return Head(stamp=run.stamp, run=run.run, price_book=run.book_facts)


def amount(
    make: Figures,
    nano: int | None,
    *,
    basis: str = "measured",
    why: str | None = None,
    interval: Interval | None = None,
    no_interval: str | None = None,
) -> Figure:
    """Whole nano-dollars at the margin, with an interval in dollars, or why there is none."""
    low = None if interval is None else round(interval.low * NANO_USD_PER_USD)
    high = None if interval is None or interval.high is None else round(interval.high * NANO_USD_PER_USD)
    return Figure(
        value=nano,
        unit="nano_usd",
        view=MARGINAL,
        stamp=make.stamp,
        basis=basis,
        why=why,
        low=low,
        high=high,
        no_interval=no_interval if nano is not None and low is None else None,
    )


def counted(
    make: Figures,
    value: float | None,
    unit: str,
    *,
    why: str | None = None,
    interval: Interval | None = None,
    no_interval: str | None = None,
) -> Figure:
    """What is counted or rated rather than priced, with an interval, or why there is none."""
    return Figure(
        value=value,
        unit=unit,
        view=COUNT,
        stamp=make.stamp,
        why=why,
        low=interval.low if interval is not None else None,
        high=interval.high if interval is not None else None,
        no_interval=no_interval if value is not None and interval is None else None,
    )


def per_device_hour(interval: Interval | None, m: Marginal) -> Interval | None:
    """An interval over the run, for each borrowed device-hour."""
    if interval is None or interval.high is None or not m.borrowed_ns:
        return None
    return interval.over(m.borrowed_ns / NS_PER_HOUR)
