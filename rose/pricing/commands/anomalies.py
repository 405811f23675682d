"""`rose books anomalies` and `rose books judge`: days that stand out, and what somebody says of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import (
    BookOption,
    FromOption,
    MonthOption,
    ProvenanceOption,
    ToOption,
    UnverifiedOption,
    WhoOption,
    clear_errors,
    print_answer,
)  # fmt: skip

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
    """Days that cost other than the days before them, and what drove it; the last 28 whole days if none are given."""
    with clear_errors():
        from rose.pricing.watch import anomaly, tables

        root, judged = ledger_root(ledger), _judged(from_text, to_text, month)
        watched = anomaly.find(root, judged, price_book, provenance=provenance, allow_unverified=allow_unverified)
        print_answer(as_json, watched.to_json(), lambda: tables.watch(watched))


def judge(
    day: Annotated[str, typer.Argument(help="The UTC day that stands out, such as 2026-11-03.")],
    metric: Annotated[str, typer.Argument(help="What stands out, as `rose books anomalies` names it, such as cost.")],
    verdict: Annotated[
        str | None, typer.Argument(help="expected, unexpected, or wrong (the figure is not right).")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, in words; it stays in the ledger.")] = "",
    ledger: LedgerOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    who: WhoOption = None,
    *,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take back what was said of it last.")] = False,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what an anomaly is, for whoever reads it next; an expected one is alerted on no more."""
    with clear_errors():
        from rose.pricing.annotations import feedback
        from rose.pricing.closing import period
        from rose.pricing.money import PricingError
        from rose.pricing.watch import anomaly

        if withdraw == (verdict is not None):
            raise PricingError(f"give {', '.join(feedback.VERDICTS)} as the verdict, or --withdraw")
        root, asked = ledger_root(ledger), period.of_day(period.day_of(period.hour(day, "day")))
        watched = anomaly.find(root, asked, price_book, provenance=provenance, allow_unverified=allow_unverified)
        subjects = {one.metric: one.subject for one in watched.anomalies}
        if metric not in subjects:
            outstanding = f"what stands out is {', '.join(subjects)}" if subjects else "nothing stands out"
            raise PricingError(f"{metric!r} of {asked.label} does not stand out: {outstanding} on that day")
        if verdict is None:
            said = feedback.withdraw(root, subjects[metric], reason, by=who)
        else:
            said = feedback.judge(root, subjects[metric], verdict, reason, by=who)
        data = {"date": asked.label, "metric": metric, "withdrawn": withdraw, "judgement": said.to_json()}
        taken_back = "taken back: " if withdraw else ""
        print_answer(as_json, data, lambda: [f"{asked.label}: {metric}: {taken_back}{said.text}"])


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
