"""A close as people read it: what was closed, what was corrected since, and where the money went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rose.clock import utc
from rose.pricing import charges
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.records import Posting
from rose.pricing.closing.store import Closed
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, Figure, Figures
from rose.pricing.money import PricingError

VIEWS: tuple[str, ...] = ("amortized", "fully-loaded")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One row of a drill-down: a value for each dimension of `by`. `time` and `tokens` are None when fully loaded."""

    values: tuple[str, ...]
    cost: Figure
    share: Figure
    time: Figure | None
    tokens: Figure | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """`closed` + `corrections` = `total`; the costs of `lines` sum to `total`."""

    close: Closed
    by: tuple[str, ...]
    closed: Figure
    corrections: Figure
    total: Figure
    lines: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "close_id": self.close.close_id,
            **self.close.stamp.to_json(),
            "postings": [posting_json(posting) for posting in self.close.posted],
            "closed": self.closed.to_json(),
            "corrections": self.corrections.to_json(),
            "total": self.total.to_json(),
            "by": list(self.by),
            "lines": [
                {
                    **dict(zip(self.by, line.values, strict=True)),
                    "cost": line.cost.to_json(),
                    "share": line.share.to_json(),
                    "time": line.time.to_json() if line.time else None,
                    "tokens": line.tokens.to_json() if line.tokens else None,
                }
                for line in self.lines
            ],
        }


def state(closed: Closed, by: Sequence[str] = ("bucket",), view: str = "amortized") -> Statement:
    """The statement of a close as it was read, drilled into by dimensions (`frames.BY`).

    Raises PricingError for a dimension or a view that there is none of.
    """
    if view not in VIEWS:
        raise PricingError(f"there is no view {view!r} of a close; give one of {', '.join(VIEWS)}")
    make, name = Figures(closed.stamp), AMORTIZED if view == "amortized" else FULLY_LOADED
    frame, before, amount = closed.frame, closed.charges.frame, "cost_nano"
    if view == "fully-loaded":
        frame, before, amount = charges.fully_load(frame), charges.fully_load(before), "loaded_nano"
    total, first = charge_algebra.total(frame, amount), charge_algebra.total(before, amount)
    lines = []
    for row in charge_algebra.drill(frame, by, amount):
        counted = view == "amortized"
        lines.append(
            Line(
                values=tuple(row[dimension] for dimension in by),
                cost=make.amount(row[amount], name),
                share=make.part(row[amount], total),
                time=make.number(row["ns"], "ns") if counted else None,
                tokens=make.number(row["tokens"], "tokens") if counted else None,
            )
        )
    if not sum(int(line.cost.value or 0) for line in lines) == total == charge_algebra.total(closed.frame):
        raise PricingError(
            f"the lines of {closed.close_id} do not add up to its total of {total:,} nano-dollars, so nothing can be "
            "stated: an amount is too large to be kept exactly; check the unit of the prices (`rose price show`)"
        )
    return Statement(
        close=closed,
        by=tuple(by),
        closed=make.amount(first, name),
        corrections=make.amount(total - first, name),
        total=make.amount(total, name),
        lines=tuple(lines),
    )


def posting_json(posting: Posting) -> dict[str, Any]:
    """What the ledger's event says, without the sums."""
    fields = posting.to_json()
    times = {"from": utc(posting.from_ns), "to": utc(posting.to_ns), "posted_at": utc(posting.posted_ns)}
    hidden = ("totals", "from_ns", "to_ns", "posted_us")
    own = {name: value for name, value in fields.items() if name not in hidden}
    return times | own | {"sha256": posting.sha256}
