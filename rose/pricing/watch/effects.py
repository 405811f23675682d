"""Why one day cost more than another: usage, price and mix, which sum to the change exactly.

[D] Cells are teams, device classes, buckets and kinds of charge; the volume v of a cell is its time, bytes or energy,
its rate r = cost / v, V the volume of all cells of a kind, 0 the day compared with and 1 the day that is explained:

- usage: c0 * (V1 / V0 - 1), what the same mix at the same rates would have cost more;
- mix: (v1 - v0 * V1 / V0) * r0, what moved between cells; a cell without a rate yet is mix at its own;
- price: v1 * (r1 - r0).

Their sum is c1 - c0. A kind that was not there before is usage. Exact fractions are rounded once, by largest
remainder, so that every total of whole nano-dollars is the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import polars as pl

#: Usage is of all that devices did; the volume of `rose.pricing.answers.changes` leaves out what rollouts made.
USAGE, MIX, PRICE = EFFECTS = ("usage", "mix", "price")
#: What a change is shown by.
BY: tuple[str, ...] = ("team", "device_class", "bucket")
_VOLUME_OF = {"capacity": "ns", "transfer": "bytes", "energy": "energy_mw_ns"}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    team: str
    device_class: str
    bucket: str
    kind: str


@dataclass(frozen=True, slots=True)
class Amount:
    volume: int
    cost_nano: int


@dataclass(frozen=True, slots=True)
class Change:
    """`parts` are whole units by cell and effect; they sum to `total`."""

    total: int
    parts: Mapping[tuple[Cell, str], int]

    @property
    def effects(self) -> dict[str, int]:
        """Each effect over all cells; they sum to `total`."""
        totals: dict[str, int] = {}
        for (_, effect), amount in self.parts.items():
            totals[effect] = totals.get(effect, 0) + amount
        return totals

    def by(self, name: str) -> dict[str, dict[str, int]]:
        """Value of `name` (one of BY) to its effects; all of them sum to `total`."""
        totals: dict[str, dict[str, int]] = {}
        for (cell, effect), amount in self.parts.items():
            row = totals.setdefault(getattr(cell, name), dict.fromkeys(self.effects, 0))
            row[effect] += amount
        return totals


def cells(frame: pl.DataFrame) -> dict[Cell, Amount]:
    """Volume and cost of each cell of some charges."""
    volume = pl.coalesce(pl.when(pl.col("kind") == kind).then(pl.col(name)) for kind, name in _VOLUME_OF.items())
    grouped = frame.group_by("team", "device_class", "bucket", "kind").agg(
        volume.sum().alias("volume"), pl.col("cost_nano").sum()
    )
    return {Cell(*row[:4]): Amount(int(row[4]), int(row[5])) for row in grouped.sort(pl.all()).iter_rows()}


def effects(before: Mapping[Cell, Amount], now: Mapping[Cell, Amount]) -> dict[tuple[Cell, str], Fraction]:
    """Exact nano-dollars of each effect in each cell; they sum to the change of the cost."""
    shares: dict[tuple[Cell, str], Fraction] = {}
    for kind in sorted({cell.kind for cell in (*before, *now)}):
        same_kind = sorted({cell for cell in (*before, *now) if cell.kind == kind})
        whole0 = sum(before[cell].volume for cell in same_kind if cell in before)
        whole1 = sum(now[cell].volume for cell in same_kind if cell in now)
        for cell in same_kind:
            was, is_now = before.get(cell, Amount(0, 0)), now.get(cell, Amount(0, 0))
            parts = _cell(was, is_now, Fraction(whole1, whole0) if whole0 else None)
            shares |= {(cell, effect): part for effect, part in zip(EFFECTS, parts, strict=True)}
    return shares


def largest(amounts: Iterable[tuple[str, int]], sign: int) -> tuple[str, int]:
    """The amount that did most in the direction of `sign`; the first by name where two did as much."""
    return min(amounts, key=lambda item: (-sign * item[1], item[0]))


def _cell(was: Amount, now: Amount, growth: Fraction | None) -> tuple[Fraction, Fraction, Fraction]:
    """Usage, mix and price effect of one cell, where all of its kind grew by the factor `growth`."""
    if growth is None:
        return Fraction(now.cost_nano - was.cost_nano), Fraction(0), Fraction(0)
    usage = was.cost_nano * (growth - 1)
    if was.volume == 0:
        # Nothing says what it would have cost before.
        return usage, now.cost_nano - was.cost_nano - usage, Fraction(0)
    rate = Fraction(was.cost_nano, was.volume)
    return usage, (now.volume - was.volume * growth) * rate, now.cost_nano - now.volume * rate
