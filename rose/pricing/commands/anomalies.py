"""`rose books anomalies`: days that stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import (
    BookOption,
    FromOption,
    MonthOption,
    ProvenanceOption,
    ToOption,
    UnverifiedOption,
    clear_errors,
    print_answer,
)

if TYPE_CHECKING:
    from rose.pricing.closing.period import Period


def anomalies(
    ledger: LedgerOption = None,
    from_text: FromOption = None,
    to_text: ToOption = None,
    month: MonthOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Days that cost other than the days before them; the last 28 whole days if none are given."""
    with clear_errors():
        from rose.pricing.watch import anomaly, tables

        root, judged = ledger_root(ledger), _judged(from_text, to_text, month)
        watched = anomaly.find(root, judged, price_book, provenance=provenance, allow_unverified=allow_unverified)
        print_answer(as_json, watched.to_json(), lambda: tables.watch(watched))


def _judged(from_text: str | None, to_text: str | None, month: str | None) -> Period:
    """The days that are over of a period, else the last 28. Raises PricingError where none is over."""
    from rose.clock import utc_us
    from rose.pricing.closing.period import NS_PER_DAY, Period, day_of, of_day, parse
    from rose.pricing.money import PricingError

    today_ns = of_day(day_of(utc_us() * 1000)).from_ns
    judged = Period(today_ns - 28 * NS_PER_DAY, today_ns)
    if from_text or to_text or month:
        judged = parse(from_text, to_text, month)
    if judged.from_ns >= today_ns:
        raise PricingError(f"no day of {judged.label} is over yet, so there is none to judge")
    return Period(judged.from_ns, min(judged.to_ns, today_ns))
