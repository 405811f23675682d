"""What a scheduled report says: what a period cost and what drove the change, what borrowing saved, how serving did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rose.ledger import catalog, verified
from rose.pricing import query
from rose.pricing.alerts import message
from rose.pricing.alerts.config import AlertsConfig, ReportConfig
from rose.pricing.alerts.message import Message, Section
from rose.pricing.answers.report import changes
from rose.pricing.charges import NothingChargedError
from rose.pricing.closing.bill import bill
from rose.pricing.closing.period import Period
from rose.pricing.figures import AMORTIZED, EXAMPLE_PRICES, MARGINAL
from rose.pricing.money import PricingError, format_money, format_usd, signed_usd
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.calendar import Calendar
from rose.pricing.watch import budget

_PERIODS = {"day": "yesterday", "week": "last-week", "month": "last-month"}
_GROUPS = 10


def build(root: Path, report: ReportConfig, config: AlertsConfig, instant_us: int, now_us: int) -> list[Message]:
    """The report that was scheduled for an instant (UTC microseconds), one message for each of its channels.

    It is of the last whole day, week or month then, in its time zone. Raises PricingError where the period cannot be
    priced, LedgerError.
    """
    calendar = Calendar(report.time_zone)
    period = calendar.period(_PERIODS[report.every], instant_us * 1000)
    before = calendar.period(_PERIODS[report.every], period.from_ns)
    book = choice.choose(
        root, config.price_book, from_ns=period.from_ns, to_ns=period.to_ns, provenance=config.provenance
    )
    sentences, sections = _cost(root, report, config, book, period, before, calendar)
    sentences += [
        _saved(root, config, book, period),
        _serving(root, config, period),
        *_budgets(root, config, instant_us),
        f"Ledger {verified.text(root)}.",
    ]
    return [
        Message(
            message_id=message.new_id(),
            channel=channel,
            kind="report",
            key=key(report, instant_us),
            title=f"{report.name}: {calendar.text(period)}",
            sentences=tuple(sentences),
            at_us=now_us,
            provenance=config.provenance,
            sections=sections,
        )
        for channel in report.channels
    ]


def key(report: ReportConfig, instant_us: int) -> str:
    """What tells a report from all others: its name and the time that it was scheduled for."""
    return f"report/{report.name}/{instant_us}"


def _cost(
    root: Path,
    report: ReportConfig,
    config: AlertsConfig,
    book: PriceBook,
    period: Period,
    before: Period,
    calendar: Calendar,
) -> tuple[list[str], tuple[Section, ...]]:
    """What it cost, beside the period before where that has a cost."""
    try:
        made = changes.build(
            root, period, before, by=report.by, price_book=config.price_book, provenance=config.provenance
        )
    except PricingError as error:
        try:
            stamp = (charged := bill(root, period, book, provenance=config.provenance)).stamp
        except NothingChargedError as nothing:
            return [f"Nothing was charged: {nothing}."], ()
        total = format_money(int(charged.frame["cost_nano"].sum()), stamp.currency)
        return [f"The fleet cost {total} ({AMORTIZED}; {stamp}).", f"It cannot be compared: {error}."], ()
    total = format_money(made.total.cost_nano, made.stamp.currency)
    marks = f"{AMORTIZED}; {made.stamp}"
    effects = tuple((effect, signed_usd(nano)) for effect, nano in made.total.effects.items() if nano)
    sections = (
        Section.of_table(changes.table(made, _GROUPS), _GROUPS + 1),
        Section(title="What drove the change", columns=("effect", "change"), rows=effects),
    )
    compared = f"Compared with {calendar.text(before)}: {changes.sentence(made)}"
    return [f"The fleet cost {total} ({marks}).", compared], sections if effects else sections[:1]


def _saved(root: Path, config: AlertsConfig, book: PriceBook, period: Period) -> str:
    # It takes a third of the package, which an alert does without.
    from rose.pricing.spend import saved

    try:
        made = saved.saved(root, period, config.price_book, provenance=config.provenance)
    except PricingError as error:
        return f"What borrowing saved is not known: {error}."
    sums = saved.summed(made.runs)
    cash, capacity = sums["cash_saved_nano"], sums["capacity_avoided_nano"]
    unknown = f"; {sums['runs_unknown']} of {sums['runs']} runs are not known" if sums["runs_unknown"] else ""
    marks = f"; {EXAMPLE_PRICES}" if book.example else ""
    avoided = "not known" if capacity is None else format_usd(capacity)
    ends = saved.cash_text(cash and tuple(cash.values()))
    return (
        f"Cash saved by borrowing in runs that ended in it: {ends} ({MARGINAL}{marks}). "
        f"Capacity avoided, on no bill: {avoided} (hypothetical){unknown}."
    )


def _serving(root: Path, config: AlertsConfig, period: Period) -> str:
    with catalog.connect(root) as connection:
        query.set_variables(connection, provenance=config.provenance, from_ns=period.from_ns, to_ns=period.to_ns)
        (row,) = query.rows(connection, "alerts/serving")
    if not row["requests"]:
        return "No serving request was recorded in it."
    return f"Serving kept {row['kept'] / row['requests']:.2%} of its promises in {row['requests']:,} requests."


def _budgets(root: Path, config: AlertsConfig, instant_us: int) -> Iterator[str]:
    """Of each team with a budget for the month of the instant."""
    month = budget.current_month(instant_us)
    if not budget.budgets(root, month):
        return
    try:
        rows = budget.show(root, month, config.price_book, provenance=config.provenance, now_us=instant_us)
    except PricingError as error:
        yield f"What is spent of the budgets of {month.label} is not known: {error}."
        return
    for row in rows:
        spent, terms = row.spent.text, f"{row.spent.view}; {row.spent.stamp}"
        yield f"{row.team} has spent {spent} of its budget of {row.budget.text} for {month.label} ({terms})."
