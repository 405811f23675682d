"""All invoices of a period in one: what they come to, and how that follows from its close."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rose.pricing.closing.records import Posting
from rose.pricing.invoices.invoice import Invoice, Kind
from rose.pricing.money import format_money, format_usd

_NAMES: Mapping[Kind, str] = {
    "charge": "charges",
    "correction": "corrections of earlier periods",
    "shared": "shared costs",
    "credit": "credits",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Sums of the invoices of a period, nano-units of their currency; charges in dollars are what the close came to."""

    invoices: int
    currency: str
    sums_nano: Mapping[Kind, int]
    #: What was posted to the close since, which is on later invoices.
    later_nano: int
    close: Posting | None

    @property
    def total_nano(self) -> int:
        return sum(self.sums_nano.values())

    @property
    def lines(self) -> Iterator[str]:
        """For people."""
        parts = [f"{_NAMES[kind]} {self._money(nano)}" for kind, nano in self.sums_nano.items() if nano]
        count = f"{self.invoices:,} {'invoice' if self.invoices == 1 else 'invoices'}"
        yield f"{count}: {self._money(self.total_nano)} = {' + '.join(parts) or 'nothing'}"
        if self.close is not None:
            yield f"  the close {self.close.close_id}: {format_usd(self.close.cost_nano)}"
        if self.later_nano:
            yield f"  posted to it since, on the invoices of the period of the posting: {self._money(self.later_nano)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; `close_nano` is of the prices' currency, dollars."""
        plural = {"charge": "charges", "correction": "corrections", "credit": "credits"}
        return {
            "invoices": self.invoices,
            "currency": self.currency,
            "total_nano": self.total_nano,
            **{f"{plural.get(kind, kind)}_nano": nano for kind, nano in self.sums_nano.items()},
            "close_id": self.close and self.close.close_id,
            "close_nano": self.close and self.close.cost_nano,
            "invoiced_later_nano": self.later_nano,
        }

    def _money(self, nano: int) -> str:
        return format_money(nano, self.currency)


def summary(made: Sequence[Invoice]) -> Summary:
    """Of all invoices of a period, at least one."""
    return Summary(
        invoices=len(made),
        currency=made[0].stamp.currency,
        sums_nano={kind: sum(invoice.sum_nano(kind) for invoice in made) for kind in _NAMES},
        later_nano=sum(invoice.later_nano for invoice in made),
        close=made[0].close,
    )
