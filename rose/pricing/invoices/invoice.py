"""An invoice: what one team is charged for one period, line by line, in whole nano-units of a currency."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from rose.clock import utc
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.period import Period
from rose.pricing.closing.records import Posting
from rose.pricing.figures import AMORTIZED, EXAMPLE_PRICES, Stamp
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.spend.currency import Rate

#: Charges of the period; corrections of earlier ones; costs that teams share; credits, which are below zero.
Kind = Literal["charge", "correction", "shared", "credit"]
#: In which unit a kind of charge is shown, how many whole units one is, and what these are called.
UNITS: Mapping[str, tuple[str, int, str]] = {
    "capacity": ("device-hours", NS_PER_HOUR, "ns"),
    "transfer": ("GB", 10**9, "bytes"),
    "energy": ("kWh", 3_600_000 * 10**12, "mW*ns"),
}
#: Decimals of a price at most.
_PLACES_MAX = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One amount. `what` is the bucket of a charge or correction, else the name that the price book gives it."""

    kind: Kind
    what: str
    amount_nano: int
    #: Device class or route, pool and commitment; the reason of a correction; the rule of a shared cost.
    detail: str = ""
    run_id: str | None = None
    #: In whole units: ns of `device-hours`, bytes of `GB`, mW*ns of `kWh`; None where nothing is counted.
    count: int | None = None
    unit: str = ""
    #: How many amounts of whole nano-units it sums: so far it may be from what its price makes of its quantity.
    amounts: int = 1
    #: Of a correction: what was posted, and the period that it corrects.
    posting: Posting | None = None

    @property
    def quantity(self) -> Fraction | None:
        """In the shown unit."""
        return None if self.count is None else Fraction(self.count, _SCALE[self.unit][0])

    @property
    def price_nano(self) -> Fraction | None:
        """Amount for one shown unit: an average where the price changed within the period."""
        return self.amount_nano / self.quantity if self.quantity else None

    def shown_price(self, unit_nano: int) -> Decimal | None:
        """The price in whole units of the currency, which times the quantity as shown is the amount to `unit_nano`.

        Of one price it is that price: the shortest that gives the amount but for what rounding took from it. Of several
        it is their average.
        """
        exact, quantity = self.price_nano, self.quantity
        if exact is None or not quantity:
            return None
        lost = Fraction(3 * self.amounts, 2) / quantity
        for places in range(2, 7):
            price = Decimal(round(exact / 10 ** (9 - places))).scaleb(-places)
            if abs(Fraction(price) * 10**9 - exact) <= lost:
                return price
        return _round(exact / 10**9, Fraction(unit_nano, 2 * 10**9) / quantity)

    def shown_quantity(self, unit_nano: int) -> Decimal | None:
        """The quantity to three decimals, and to as many more as its price needs to be the amount."""
        if self.quantity is None:
            return None
        price = abs(self.price_nano or Fraction()) / unit_nano
        return _round(self.quantity, min(Fraction(1, 1000), 1 / price if price else Fraction(1)))

    def to_json(self) -> dict[str, Any]:
        """`quantity` is in `unit`, rounded as floats are; `count` is exact, in `count_unit`."""
        document: dict[str, Any] = {
            "kind": self.kind,
            "what": self.what,
            "detail": self.detail,
            "run": self.run_id,
            "quantity": None if self.quantity is None else float(self.quantity),
            "unit": self.unit,
            "count": self.count,
            "count_unit": _SCALE[self.unit][1] if self.unit else "",
            "amount_nano": self.amount_nano,
        }
        if (posted := self.posting) is not None:
            document |= {
                "posting": f"{posted.close_id}/{posted.number}",
                "original_period": posted.period.label,
                "posted_at": utc(posted.posted_ns),
                "sha256": posted.sha256,
            }
        return document


_SCALE = {unit: (scale, whole) for unit, scale, whole in UNITS.values()}


def _round(value: Fraction, step: Fraction) -> Decimal:
    """To decimals no coarser than `step`, and to three digits at least."""
    finest = min(step, abs(value) / 100 if value else step)
    places = 2
    while Fraction(1, 10**places) > finest and places < _PLACES_MAX:
        places += 1
    return Decimal(round(value * 10**places)).scaleb(-places)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLabel:
    """What the ledger calls a run, and its tags."""

    name: str
    tags: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Invoice:
    """What `team` is charged for `period`; `lines` sum to the total.

    The charges of a closed period are those that it was closed with. What is posted to it later is on the invoice of
    the period in which it is posted, so that an invoice never changes and everything is invoiced once.
    """

    team: str
    period: Period
    stamp: Stamp
    lines: tuple[Line, ...]
    runs: Mapping[str, RunLabel]
    #: The close that it is of; None while the period is open.
    close: Posting | None
    #: When it was made, UTC nanoseconds: the time of the close, if there is one.
    made_ns: int
    issuer: str | None
    contact: str | None
    #: What was posted to the close since, and is invoiced later.
    later_nano: int = 0
    #: Whether a correction was posted to the close since, of any team.
    corrected: bool = field(default=False, compare=False)
    #: Closes that have taken over hours of it since, and charge them anew. Whoever compares invoices compares what is
    #: charged.
    closed_again_in: tuple[str, ...] = field(default=(), compare=False)
    rate: Rate | None = None

    @property
    def number(self) -> str:
        """From the close's id, which no other close has, the team, and what it was converted to; a name for a file."""
        stem = self.close.close_id if self.close else f"{self.period.label}-{self.stamp.provenance}-draft"
        name = re.sub(r"[^A-Za-z0-9_]+", "-", self.team).strip("-")[:40]
        # Two teams may be alike but for what no file's name can have, and one may be called as another is marked.
        plain = name == self.team and not re.search("-([0-9a-f]{8}|[A-Z]{3})$", name)
        mark = "" if plain else hashlib.sha256(self.team.encode()).hexdigest()[:8]
        return "-".join(filter(None, (stem, name, mark, self.rate.currency if self.rate else "")))

    @property
    def marks(self) -> tuple[str, ...]:
        """What every page says across it; a final invoice has none."""
        stamp = self.stamp
        return (
            *(["DRAFT"] if self.close is None or stamp.book.example else []),
            *([EXAMPLE_PRICES] if stamp.book.example else []),
            *([stamp.provenance.upper()] if stamp.provenance != "live" else []),
            *([] if stamp.verified else ["UNVERIFIED LEDGER"]),
        )

    @property
    def final(self) -> bool:
        """Whether it is of a closed period, of a ledger that verified, of live engines, and by real prices."""
        return not self.marks

    @property
    def total_nano(self) -> int:
        return sum(line.amount_nano for line in self.lines)

    def of_kind(self, kind: Kind) -> tuple[Line, ...]:
        """The lines of a kind, in order."""
        return tuple(line for line in self.lines if line.kind == kind)

    def sum_nano(self, kind: Kind) -> int:
        """What the lines of a kind come to."""
        return sum(line.amount_nano for line in self.of_kind(kind))

    def to_json(self) -> dict[str, Any]:
        """Amounts are whole nano-units of the currency."""
        close, book = self.close, self.stamp.book
        return {
            "number": self.number,
            "final": self.final,
            "marks": list(self.marks),
            "team": self.team,
            "view": AMORTIZED,
            **self.stamp.to_json(),
            "price_book_sha256": book.sha256,
            "exchange_rate": self.rate and self.rate.to_json(),
            "issuer": self.issuer,
            "contact": self.contact,
            "made_at": utc(self.made_ns),
            "close_id": close and close.close_id,
            "close_sha256": close and close.sha256,
            "charges_nano": self.sum_nano("charge"),
            "corrections_nano": self.sum_nano("correction"),
            "shared_nano": self.sum_nano("shared"),
            "credits_nano": self.sum_nano("credit"),
            "total_nano": self.total_nano,
            "invoiced_later_nano": self.later_nano,
            "closed_again_in": list(self.closed_again_in),
            "runs": {run_id: {"name": run.name, "tags": dict(run.tags)} for run_id, run in self.runs.items()},
            "lines": [line.to_json() for line in self.lines],
        }


def order(team: str) -> tuple[bool, str]:
    """Teams by name, what is of none at the end."""
    return team == UNALLOCATED, team
