"""Figures: values with their unit, view, currency, period and provenance."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from rose.clock import utc
from rose.pricing.money import NANO_USD_PER_USD, format_ns, format_usd, nano_usd_of
from rose.pricing.price_books.pricebook import EXAMPLE_PRICES, PriceBook

if TYPE_CHECKING:
    from rose.pricing.stats.bootstrap import Interval

NOT_ENOUGH_DATA = "not enough data"
NOT_SET = "not set"  # Begins the reason where the price book lacks a needed entry.

#: Views of money; `count` is for counts and times.
MARGINAL, AMORTIZED, FULLY_LOADED, COUNT = "marginal", "amortized", "fully loaded", "count"
BLENDED = "marginal for borrowed, amortized for dedicated"  # Real cost of a mix of placements.

_MARKS = {"assumed": " (assumed)", "partly measured": " (partly assumed)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BookFacts:
    name: str
    version: str
    sha256: str
    currency: str
    chosen: str
    example: bool

    @classmethod
    def from_book(cls, book: PriceBook) -> BookFacts:
        return cls(**{field.name: getattr(book, field.name) for field in fields(cls)})

    @property
    def text(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def line(self) -> str:
        rule = f", {self.chosen}" if self.chosen else ""
        mark = f"; {EXAMPLE_PRICES}" if self.example else ""
        return f"Price book {self.text} ({self.sha256[:12]}), {self.currency}{rule}{mark}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stamp:
    """What all figures of a report have in common. The period is [from_ns, to_ns), UTC."""

    from_ns: int
    to_ns: int
    provenance: str
    book: BookFacts
    verified: bool  # False: the hash chain does not hold or was not checked, and the reader allowed that.

    @property
    def currency(self) -> str:
        return self.book.currency

    @property
    def warnings(self) -> list[str]:
        lines = []
        if not self.verified:
            lines.append(
                "UNVERIFIED LEDGER: the ledger's hash chain is broken or unchecked. Do not rely on these figures."
            )
        if self.book.example:
            lines.append(f"{EXAMPLE_PRICES}: the price book {self.book.text} is made up, so no figure here is a cost.")
        if self.provenance == "simulated":
            lines.append("SIMULATED: these figures come from a model of a deployment. No such money was spent.")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "currency": self.currency,
            "price_book": self.book.text,
            "price_book_chosen": self.book.chosen,
            "example_prices": self.book.example,
            "period": {"from": utc(self.from_ns), "to": utc(self.to_ns)},
            "provenance": self.provenance,
            "verified": self.verified,
        }

    def __str__(self) -> str:
        marks = [self.currency, self.provenance] + ([] if self.verified else ["UNVERIFIED LEDGER"])
        return ", ".join(marks + ([EXAMPLE_PRICES] if self.book.example else []))


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A value and its unit: `nano_usd`, `nano_usd/...`, `ns`, `bytes`, `tokens`, `count`, `share` or `ratio`. If
    `value` is None, `why` says why."""

    value: int | float | None
    unit: str
    view: str
    stamp: Stamp
    basis: str = "measured"
    why: str | None = None
    low: int | float | None = None
    high: int | float | None = None
    no_interval: str | None = None

    @property
    def text(self) -> str:
        """Return a text such as `$0.0123`, `2 min 03.4 s` or `41.2%`, or the reason why there is no value."""
        if self.value is None:
            return self.why or NOT_ENOUGH_DATA
        return _text(self.value, self.unit)

    @property
    def short_interval(self) -> str:
        if self.low is None:
            return "-"
        return f"{_text(self.low, self.unit)} to {'unbounded' if self.high is None else _text(self.high, self.unit)}"

    @property
    def short_text(self) -> str:
        return "-" if self.value is None else self.text

    @property
    def marked_short_text(self) -> str:
        return self.short_text + ("" if self.value is None else _MARKS.get(self.basis, ""))

    def to_json(self) -> dict[str, Any]:
        names = ("value", "unit", "view", "basis", "why", "low", "high", "no_interval", "text")
        return {name: getattr(self, name) for name in names} | {"provenance": self.stamp.provenance}


class _Shown(TypedDict, total=False):
    basis: str
    why: str | None
    interval: Interval | None
    no_interval: str | None


@dataclass(frozen=True, slots=True)
class Figures:
    stamp: Stamp

    def money(self, usd: Fraction | None, view: str, *, per: str | None = None, **shown: Unpack[_Shown]) -> Figure:
        return self.amount(None if usd is None else nano_usd_of(usd), view, per=per, **shown)

    def thousand(self, usd: Fraction | None, view: str, what: str, **shown: Unpack[_Shown]) -> Figure:
        """Return the price of 1,000 of `what` from the price of one, and its interval from the interval of one."""
        if (interval := shown.get("interval")) is not None:
            shown["interval"] = interval.over(1 / 1000)
        return self.money(None if usd is None else 1000 * usd, view, per=f"1,000 {what}", **shown)

    def amount(self, nano_usd: int | None, view: str, *, per: str | None = None, **shown: Unpack[_Shown]) -> Figure:
        """Return a figure in nano-dollars. Give `value` in nano-dollars, but `interval` in dollars."""
        figure = self._figure(nano_usd, "nano_usd" if per is None else f"nano_usd/{per}", view, shown)
        low, high = (None if end is None else round(end * NANO_USD_PER_USD) for end in (figure.low, figure.high))
        return replace(figure, low=low, high=high)

    def number(self, value: int | None, unit: str, *, why: str | None = None) -> Figure:
        return self._figure(None if value is None else int(value), unit, COUNT, {"why": why})

    def measure(self, value: Fraction | float | None, unit: str = "ratio", **shown: Unpack[_Shown]) -> Figure:
        return self._figure(None if value is None else float(value), unit, COUNT, shown)

    def part(
        self,
        numerator: Fraction | int | None,
        denominator: Fraction | int = 1,
        unit: str = "share",
        why: str | None = None,
    ) -> Figure:
        value = None if numerator is None or denominator == 0 else Fraction(numerator) / denominator
        return self.measure(value, unit, why=why)

    def _figure(self, value: float | None, unit: str, view: str, shown: _Shown) -> Figure:
        interval = None if value is None else shown.get("interval")
        return Figure(
            value=value,
            unit=unit,
            view=view,
            stamp=self.stamp,
            basis=shown.get("basis", "measured"),
            why=None if value is not None else shown.get("why") or NOT_ENOUGH_DATA,
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            no_interval=shown.get("no_interval") if value is not None and interval is None else None,
        )


def _text(value: float, unit: str) -> str:
    if unit.startswith("nano_usd"):
        return format_usd(int(value))
    if unit == "ns":
        return f"{value / 1e6:,.1f} ms" if value < 1e9 else format_ns(int(value))
    if unit == "share":
        return f"{value:.1%}"
    if unit == "ratio":
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if unit == "bytes":
        for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{value / size:,.2f} {name}"
        return f"{value} B"
    if unit == "mW*ns":
        return f"{value / 3.6e18:,.6g} kWh"
    return f"{value:,}" if type(value) is int else f"{value:,.1f}"
