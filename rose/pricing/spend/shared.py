"""Costs that teams share by the rules of a price book: amounts a month, and parts of the bill that are moved.

[D] An amount a month belongs to the hours of its UTC month alike. A period has the rounded sum up to its end less that
up to its begin, so that periods one after another lose nothing. Splits are by largest remainder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import polars as pl

from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.period import month_at, naive
from rose.pricing.money import NANO_USD_PER_USD, split
from rose.pricing.price_books.entries import Dated
from rose.pricing.price_books.numbers import DECIMALS_MAX
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.price_books.rules import SharedCost

NO_TEAM = "no team has a charge, so all is unallocated"


@dataclass(frozen=True, slots=True)
class Share:
    """What a shared cost adds to the direct cost of a team, nano-dollars; below zero where more is moved away."""

    name: str
    team: str
    nano: int
    #: The rule in words: with its name what it is known by over books and months.
    words: str
    #: What of the period it could not be held to, from its punctuation on.
    note: str = ""

    @property
    def rule(self) -> str:
        """The rule as it was held to."""
        return self.words + self.note

    def to_json(self) -> dict[str, str | int]:
        return {"name": self.name, "team": self.team, "nano": self.nano, "rule": self.rule}


def shares(
    book: PriceBook, frame: pl.DataFrame, from_ns: int, to_ns: int, until_ns: int | None = None
) -> tuple[Share, ...]:
    """What the book's rules share out over [from_ns, to_ns), UTC, by rule and team; amounts a month, up to `until_ns`.

    `frame` has charges, or sums of them: `hour` (naive UTC), `team`, `bucket` and `cost_nano`. The direct cost of a
    team is that of its charges while the rule holds, less what the rule moves; below zero it counts as none, and where
    no team has any, all teams share alike. `idle` moves idle time wherever it lies, `unallocated` what is of no team
    and is not moved as idle. Amounts a month sum to what the period has of them up to then, moves to 0.
    """
    rows = frame.with_columns(pl.col("team").fill_null(UNALLOCATED))
    idle = [rule for rule in book.shared_cost if rule.share_of == "idle"]
    shares: list[Share] = []
    for rule in book.shared_cost:
        begin_ns, end_ns = held(rule, from_ns, to_ns)
        over_ns = end_ns if rule.usd_per_month is None or until_ns is None else min(end_ns, until_ns)
        if begin_ns >= over_ns:
            continue
        direct = rows.filter(_in_hours(begin_ns, end_ns))
        if direct.is_empty() and until_ns is not None and begin_ns >= until_ns:
            continue
        teams = [team for team in direct["team"].unique().sort() if team != UNALLOCATED]
        moved: dict[str, int] = {}
        if rule.usd_per_month is not None:
            total = _of_months(rule.usd_per_month, begin_ns, over_ns)
        else:
            at = _moved(rule, idle)
            moved, direct = cost_by_team(direct.filter(at)), direct.filter(~at)
            total = sum(moved.values())
        parts, note = _split(rule, total, dict.fromkeys(teams, 0) | cost_by_team(direct))
        nano = {team: parts.get(team, 0) - moved.get(team, 0) for team in sorted({*parts, *moved})}
        assert sum(nano.values()) == (total if rule.share_of is None else 0)
        shares += [Share(rule.name, team, amount, rule.words, note) for team, amount in nano.items()]
    return tuple(shares)


def held(rule: Dated, from_ns: int, to_ns: int) -> tuple[int, int]:
    """What a rule has of [from_ns, to_ns): its begin is not before its end where it has nothing of it."""
    return max(from_ns, rule.from_ns or 0), to_ns if rule.to_ns is None else min(to_ns, rule.to_ns)


def cost_by_team(frame: pl.DataFrame) -> dict[str, int]:
    """Nano-dollars by team, in the order of their names."""
    summed = frame.group_by("team").agg(pl.col("cost_nano").sum()).sort("team")
    return {team: int(nano) for team, nano in summed.select("team", "cost_nano").iter_rows()}


def _split(rule: SharedCost, total: int, direct: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """An amount by team, and what is to be noted of it."""
    if rule.shares is not None:
        weights = {team: int(share.scaleb(DECIMALS_MAX)) for team, share in sorted(rule.shares.items())}
    else:
        weights = {team: max(nano, 0) if rule.split == "usage" else 1 for team, nano in direct.items()}
        weights.pop(UNALLOCATED, None)
    if not weights:
        return {UNALLOCATED: total}, f"; {NO_TEAM}"
    return split(total, weights), ""


def _moved(rule: SharedCost, idle: list[SharedCost]) -> pl.Expr:
    """Which charges a rule moves."""
    is_idle = pl.col("bucket") == "idle"
    if rule.share_of == "idle":
        return is_idle
    elsewhere = [is_idle & _in_hours(other.from_ns, other.to_ns) for other in idle]
    return (pl.col("team") == UNALLOCATED) & ~pl.any_horizontal(pl.lit(False), *elsewhere)


def _in_hours(from_ns: int | None, to_ns: int | None) -> pl.Expr:
    begun = pl.lit(True) if from_ns is None else pl.col("hour") >= naive(from_ns)
    return begun if to_ns is None else begun & (pl.col("hour") < naive(to_ns))


def _of_months(usd_per_month: Decimal, from_ns: int, to_ns: int) -> int:
    """Nano-dollars that [from_ns, to_ns) has of an amount a month."""
    nano = 0
    while from_ns < to_ns:
        month = month_at(from_ns)
        end_ns = min(month.to_ns, to_ns)
        whole = Fraction(usd_per_month) * NANO_USD_PER_USD / (month.to_ns - month.from_ns)
        nano += round(whole * (end_ns - month.from_ns)) - round(whole * (from_ns - month.from_ns))
        from_ns = end_ns
    return nano
