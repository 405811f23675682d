"""Spend that nobody can be asked about: of no team, by a run and on a device without any tag."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rose.ledger import catalog
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.period import NS_PER_DAY, Period
from rose.pricing.figures import AMORTIZED, Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books.rules import tagging
from rose.pricing.query import rows, set_variables
from rose.pricing.spend.cost import tags_of
from rose.pricing.spend.gather import gather

_DEVICE = ("device_id", "hardware_id", "pool", "device_class")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A device of a run, and what it cost, nano-dollars."""

    run_id: str
    device_id: str | None
    hardware_id: str | None
    device_class: str
    cost_nano: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Untagged:
    """The lines of a period, the dearest first, and its whole bill, nano-dollars."""

    lines: tuple[Line, ...]
    bill_nano: int
    stamp: Stamp

    @property
    def cost_nano(self) -> int:
        return sum(line.cost_nano for line in self.lines)

    def percent(self, nano: int) -> float:
        """Percent of the bill; 0 of a bill of 0."""
        return 100 * nano / self.bill_nano if self.bill_nano else 0.0

    def to_json(self) -> dict[str, Any]:
        """Amounts are whole nano-dollars of the currency."""
        return {
            "view": AMORTIZED,
            **self.stamp.to_json(),
            "bill_nano": self.bill_nano,
            "untagged_nano": self.cost_nano,
            "untagged_percent": self.percent(self.cost_nano),
            "lines": [
                {
                    "run": line.run_id,
                    "device": line.device_id,
                    "hardware": line.hardware_id,
                    "device_class": line.device_class,
                    "cost_nano": line.cost_nano,
                    "percent": self.percent(line.cost_nano),
                }
                for line in self.lines
            ],
        }


def untagged(
    root: Path,
    period: Period,
    price_book: str | None = None,
    *,
    provenance: str | None = None,
    allow_unverified: bool = False,
) -> Untagged:
    """What a period cost that has neither a team nor a tag, by run and device.

    Tags of runs are those of the ledger now, tags of devices those of the book that priced the period's last hours.
    Raises PricingError for a period that is not of whole UTC days, and as `gather` does.
    """
    if period.from_ns % NS_PER_DAY or period.to_ns % NS_PER_DAY:
        raise PricingError("devices are kept by UTC day: give a period of whole UTC days without --tz")
    gathered = gather(root, period, price_book, grain="day", provenance=provenance, allow_unverified=allow_unverified)
    charged = gathered.by("team", "run_id", *_DEVICE)
    of_no_team = pl.col("team").fill_null(UNALLOCATED) == UNALLOCATED
    summed = charged.filter(of_no_team).group_by("run_id", *_DEVICE).agg(pl.col("cost_nano").sum())
    tagged_runs = _tagged_runs(root, gathered.stamp.provenance)
    tags = tagging(gathered.newest_book(root).device_tag)
    lines = [
        Line(
            run_id=row["run_id"],
            device_id=row["device_id"],
            hardware_id=row["hardware_id"],
            device_class=row["device_class"],
            cost_nano=int(row["cost_nano"]),
        )
        for row in summed.iter_rows(named=True)
        if row["run_id"] not in tagged_runs and row["cost_nano"] and not tags(*(row[name] for name in _DEVICE))
    ]
    lines.sort(key=lambda line: (-line.cost_nano, line.run_id, line.device_id or ""))
    return Untagged(lines=tuple(lines), bill_nano=int(charged["cost_nano"].sum()), stamp=gathered.stamp)


def _tagged_runs(root: Path, provenance: str) -> set[str]:
    """Runs that have some tag with a value."""
    with catalog.connect(root) as ledger:
        set_variables(ledger, provenance=provenance)
        return {row["run_id"] for row in rows(ledger, "spend/run_tags") if any(tags_of(row["tags_json"]).values())}
