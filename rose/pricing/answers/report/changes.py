"""The change of cost between two periods of a ledger, made and shown: effects, then the groups that changed most."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

from rose.clock import utc
from rose.ledger import layout
from rose.ledger.commands.output import csv_cells
from rose.pricing.answers import changes
from rose.pricing.answers.changes import EFFECTS, Changes, Group
from rose.pricing.closing.bill import Bill, bill
from rose.pricing.closing.period import Period
from rose.pricing.figures import AMORTIZED
from rose.pricing.money import PricingError, signed_money, signed_usd
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.calendar import Calendar
from rose.pricing.table import Column, Element, Row, Table

#: Groups that are shown one by one.
TOP = 10


def build(
    root: Path,
    period: Period,
    before: Period | None = None,
    *,
    by: str = "team",
    price_book: str | PriceBook | None = None,
    provenance: str | None = None,
    allow_unverified: bool = False,
) -> Changes:
    """What drove the change from `before`, else from as long a time just before the period, to the period.

    Raises PricingError where one of them has no charge, they overlap or cannot be compared; LedgerError.
    """
    root = layout.check(root)
    if before is None:
        before = Period(2 * period.from_ns - period.to_ns, period.from_ns)
    if before.overlaps(period):
        raise PricingError(f"{before.label} and {period.label} overlap: no change can be told between them")

    def charged(of: Period) -> Bill:
        book = choice.choose(root, price_book, from_ns=of.from_ns, to_ns=of.to_ns, provenance=provenance)
        return bill(root, of, book, provenance=provenance, allow_unverified=allow_unverified)

    was, now = charged(before), charged(period)
    return changes.changes(
        changes.side(was.frame, by), changes.side(now.frame, by), by=by, before_stamp=was.stamp, stamp=now.stamp
    )


def sentence(made: Changes, signed: Callable[[int], str] = signed_usd) -> str:
    """In words: how much more or less it cost, and the effect that did most of it; `signed` writes nano-dollars."""
    change = made.total.change_nano
    if change == 0:
        return "It cost the same."
    sign = 1 if change > 0 else -1
    effect, amount = max(made.total.effects.items(), key=lambda item: sign * item[1])
    share = f" ({abs(change) / made.total.before_nano:.1%})" if made.total.before_nano > 0 else ""
    return f"Cost changed by {signed(change)}{share}, mostly {effect} ({signed(amount)})."


def terminal(made: Changes, calendar: Calendar, top: int = TOP) -> Iterator[Element]:
    """The two periods, the change in words, and its table."""
    now, before = (Period(stamp.from_ns, stamp.to_ns) for stamp in (made.stamp, made.before))
    yield f"{calendar.text(now)}, compared with {calendar.text(before)}  [{AMORTIZED}; {made.stamp}]"
    if not made.before.verified:
        yield "The ledger of the period before is NOT VERIFIED."
    yield sentence(made, lambda nano: signed_money(nano, made.stamp.currency))
    yield table(made, top)


def csv_text(made: Changes) -> str:
    """A row for each group, the largest change first; amounts in whole units of the currency, to the nano."""
    written, stamp, before = io.StringIO(), made.stamp, made.before
    rows = csv.writer(written, lineterminator="\n")
    terms = {
        "currency": stamp.currency,
        "view": AMORTIZED,
        "period_from": utc(stamp.from_ns),
        "period_to": utc(stamp.to_ns),
        "before_from": utc(before.from_ns),
        "before_to": utc(before.to_ns),
        "provenance": stamp.provenance,
        "verified": str(stamp.verified and before.verified).lower(),
        "price_book": stamp.book.text,
        "example_prices": str(stamp.book.example or before.book.example).lower(),
    }
    rows.writerow([made.by, "before", "now", "change", *(effect.replace(" ", "_") for effect in EFFECTS), *terms])
    for group in made.groups:
        amounts = (group.before_nano, group.cost_nano, group.change_nano, *(group.effects[name] for name in EFFECTS))
        texts = (f"{Decimal(nano).scaleb(-9):f}" for nano in amounts)
        rows.writerow([*csv_cells((group.name,)), *texts, *csv_cells(map(str, terms.values()))])
    return written.getvalue()


def table(made: Changes, top: int = TOP) -> Table:
    """A line for each of the `top` groups that changed most, one for the others, and their sum."""
    shown = [effect for effect in EFFECTS if any(group.effects[effect] for group in made.groups)]

    def row(name: str, groups: tuple[Group, ...]) -> Row:
        effects = (sum(group.effects[effect] for group in groups) for effect in shown)
        costs = (sum(group.before_nano for group in groups), sum(group.cost_nano for group in groups))
        return (name, *costs, costs[1] - costs[0], *effects)

    rest = made.groups[top:]
    currency = made.stamp.currency
    return Table(
        title="",
        columns=(Column(made.by), *(Column(name, "money", currency) for name in ("before", "now", "change", *shown))),
        rows=(
            *(row(group.name, (group,)) for group in made.groups[:top]),
            *([row(f"{len(rest)} others", rest)] if rest else []),
        ),
        footer=(row("total", made.groups),),
    )
