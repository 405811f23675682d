"""The effects that explain a change of cost between two periods. They sum to the change, exact to the nano-dollar.

[D] They are the volume, mix and price variances of Horngren, Datar and Rajan, Cost Accounting, 2018, chapters 7 and 14.
A cell is a bucket, a pool and a device class. A line is the part of a cell that belongs to one group, such as a team.
A line has device time v0 and cost c0 in the earlier period, and v1 and c1 in the later period. V0 is the sum of v0 over
all lines of the same `work`, and V1 is the sum of v1. G = V1 / V0.
- r = earlier cost / earlier time of the line's cell. R = the same ratio for all rollout time of the cell's pool.
- Volume = c0 * (G - 1). For rollouts, OUTPUT names its three parts. If V0 is 0, the whole change is volume.
- Share borrowed = (v1 - v0 * G) * R, for rollouts only. If the pool had no earlier time, it is c1.
- Mix = v1 * r - c0 * G - share borrowed. Price = c1 - v1 * r.
- If the cell had no earlier time, r is unknown. Then c1 replaces v1 * r in mix and price."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, TypeVar

import polars as pl

from rose.ledger.ledger import Ledger
from rose.pricing.closing.bill import bill
from rose.pricing.figures import AMORTIZED, Stamp
from rose.pricing.money import NothingChargedError, PricingError, rounded, signed_usd
from rose.pricing.period import Period, period_before
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.calendar import Calendar
from rose.pricing.table import Column, Element, Row, Table

BY: Mapping[str, str] = {  #: Dimensions of an answer, with the column of the charges.
    "team": "team",
    "run": "run_id",
    "device-class": "device_class",
    "pool": "pool",
    "device": "device_id",
    "bucket": "bucket",
    "task": "task",
    "version": "policy_version",
}
UNALLOCATED = "unallocated"
VOLUME, SHARE_BORROWED, MIX, PRICE = "volume", "share borrowed", "mix", "price"
OUTPUT = ("accepted output", "tokens per accepted token", "device time per token")
EFFECTS: tuple[str, ...] = (VOLUME, *OUTPUT, SHARE_BORROWED, MIX, PRICE)
TOP = 10

_CELL = ("bucket", "pool", "device_class")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    before_nano: int
    cost_nano: int
    effects: Mapping[str, int]

    @property
    def change_nano(self) -> int:
        return self.cost_nano - self.before_nano

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "before_nano": self.before_nano,
            "cost_nano": self.cost_nano,
            "change_nano": self.change_nano,
            "effects_nano": dict(self.effects),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The change between two periods. The group with the largest change comes first."""

    by: str
    before: Stamp
    stamp: Stamp
    total: Group
    groups: tuple[Group, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "view": AMORTIZED,
            **self.stamp.to_json(),
            "before": self.before.to_json(),
            "by": self.by,
            **{name: value for name, value in self.total.to_json().items() if name != "group"},
            "groups": [group.to_json() for group in self.groups],
        }


@dataclass(frozen=True, slots=True, order=True)
class GroupCell:
    group: str
    bucket: str
    pool: str
    device_class: str

    @property
    def work(self) -> str:
        return self.bucket if self.bucket in ("rollout", "transfer", "energy") else "other"

    @property
    def cell(self) -> tuple[str, str, str]:
        return self.bucket, self.pool, self.device_class


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodSums:
    ns: Counter[GroupCell]
    cost_nano: Counter[GroupCell]
    tokens: int
    accepted_tokens: int


def side(charges: pl.DataFrame, by: str) -> PeriodSums:
    """Return the sums of charges for each value of `by`. Raises PricingError if `by` is not a dimension in BY."""
    if by not in BY:
        raise PricingError(f"changes cannot be shown by {by!r}; give one of {', '.join(BY)}")
    group = pl.col(BY[by]).cast(pl.String).fill_null(UNALLOCATED).alias("group")
    filled = charges.with_columns(group, *(pl.col(name).fill_null("") for name in _CELL))
    summed = filled.group_by("group", *_CELL).agg(pl.col("ns", "cost_nano").sum()).rows()
    rollouts = charges.filter(pl.col("bucket") == "rollout")
    return PeriodSums(
        ns=Counter({GroupCell(*line): ns for *line, ns, _ in summed}),
        cost_nano=Counter({GroupCell(*line): nano for *line, _, nano in summed}),
        tokens=int(rollouts["tokens"].sum()),
        accepted_tokens=int(rollouts.filter(pl.col("fate") == "accepted")["tokens"].sum()),
    )


def changes(before: PeriodSums, now: PeriodSums, *, by: str, before_stamp: Stamp, stamp: Stamp) -> Changes:
    """Return the change between two periods. Raises PricingError if the periods differ in provenance."""
    one, other = before_stamp.provenance, stamp.provenance
    if one != other:
        raise PricingError(f"the periods differ in provenance ({one} and {other}): they cannot be compared")
    exact, groups = effects(before, now), []
    for name in sorted({line.group for line in (*before.ns, *now.ns)}):
        cost0, cost1 = (
            sum(nano for line, nano in side.cost_nano.items() if line.group == name) for side in (before, now)
        )
        parts = rounded({effect: exact.get((name, effect), Fraction(0)) for effect in EFFECTS}, cost1 - cost0)
        groups.append(Group(name, cost0, cost1, parts))
    groups.sort(key=lambda group: (-abs(group.change_nano), group.name))
    before_nano, cost_nano = sum(group.before_nano for group in groups), sum(group.cost_nano for group in groups)
    summed = {effect: sum(group.effects[effect] for group in groups) for effect in EFFECTS}
    total = Group("total", before_nano, cost_nano, summed)
    return Changes(by=by, before=before_stamp, stamp=stamp, total=total, groups=tuple(groups))


def effects(before: PeriodSums, now: PeriodSums) -> dict[tuple[str, str], Fraction]:
    """Return the exact nano-dollars of each effect, by (group, effect)."""
    totals: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    works: dict[str, list[GroupCell]] = defaultdict(list)
    for line in sorted({*before.ns, *now.ns}):
        works[line.work].append(line)
    for work, lines in works.items():
        for line, effect, part in _of_work(work, lines, before, now):
            totals[line.group, effect] += part
    return dict(totals)


def _of_work(
    work: str, lines: list[GroupCell], before: PeriodSums, now: PeriodSums
) -> Iterable[tuple[GroupCell, str, Fraction]]:
    time0, time1 = (sum(side.ns[line] for line in lines) for side in (before, now))
    growth = Fraction(time1, time0) if time0 else None
    cells, pools = _rates(lines, before, lambda line: line.cell), _rates(lines, before, lambda line: line.pool)
    steps = _steps(growth, before, now, time0, time1) if work == "rollout" else None
    for line in lines:
        cost0, ns1, cost1 = before.cost_nano[line], now.ns[line], now.cost_nano[line]
        if growth is None:
            yield line, VOLUME, Fraction(cost1 - cost0)
            continue
        for effect, factor in steps or ((VOLUME, growth - 1),):
            yield line, effect, cost0 * factor
        rate, pool = cells.get(line.cell), pools.get(line.pool)
        at_old_rates = Fraction(cost1) if rate is None else ns1 * rate
        moved = Fraction(0)
        if work == "rollout":
            # A new pool and its cells have no earlier rate: the whole cost counts as moved.
            moved = at_old_rates if pool is None else (ns1 - before.ns[line] * growth) * pool
            yield line, SHARE_BORROWED, moved
        yield line, MIX, at_old_rates - cost0 * growth - moved
        yield line, PRICE, cost1 - at_old_rates


def _steps(
    growth: Fraction | None, before: PeriodSums, now: PeriodSums, time0: int, time1: int
) -> tuple[tuple[str, Fraction], ...] | None:
    amounts = (before.accepted_tokens, before.tokens, time0, now.accepted_tokens, now.tokens, time1)
    if growth is None or min(amounts) <= 0:
        return None
    accepted = Fraction(now.accepted_tokens, before.accepted_tokens)
    tokens_ratio = Fraction(now.tokens, before.tokens)
    reached = [Fraction(1), *accumulate((accepted, tokens_ratio / accepted, growth / tokens_ratio), mul)]
    return tuple(zip(OUTPUT, (after - until for until, after in pairwise(reached)), strict=True))


def _rates(lines: Iterable[GroupCell], side: PeriodSums, key: Callable[[GroupCell], K]) -> dict[K, Fraction]:
    time, cost = Counter[K](), Counter[K]()
    for line in lines:
        time[key(line)] += side.ns[line]
        cost[key(line)] += side.cost_nano[line]
    return {name: Fraction(cost[name], ns) for name, ns in time.items() if ns}


def build(
    ledger: Ledger,
    period: Period,
    before: Period | None = None,
    *,
    by: str = "team",
    price_book: str | PriceBook | None = None,
    provenance: str | None = None,
) -> Changes:
    """Return the change from `before` to `period`. By default, `before` is the equally long time before `period`, or
    the previous month for a month. Raises LedgerError, or PricingError for overlap or a `period` without charges."""
    earlier = before or period_before(period)
    if earlier.overlaps(period):
        raise PricingError(f"{earlier.label} and {period.label} overlap: give periods that do not overlap")
    now = bill(ledger, period, price_book, provenance=provenance)
    try:
        was = bill(ledger, earlier, price_book, provenance=now.stamp.provenance)
        frame, stamp = was.frame, was.stamp
    except NothingChargedError:
        if before is not None:
            raise
        frame, stamp = now.frame.clear(), replace(now.stamp, from_ns=earlier.from_ns, to_ns=earlier.to_ns)
    return changes(side(frame, by), side(now.frame, by), by=by, before_stamp=stamp, stamp=now.stamp)


def sentence(comparison: Changes) -> str:
    """Return a sentence with the change, and the effect that contributed most to it."""
    change = comparison.total.change_nano
    if change == 0:
        return "It cost the same."
    if not comparison.total.before_nano:
        return f"All cost is new ({signed_usd(change)}): nothing was charged before."
    sign = 1 if change > 0 else -1
    effect, amount = max(comparison.total.effects.items(), key=lambda item: sign * item[1])
    share = f" ({abs(change) / comparison.total.before_nano:.1%})" if comparison.total.before_nano > 0 else ""
    return f"Cost changed by {signed_usd(change)}{share}, mostly {effect} ({signed_usd(amount)})."


def terminal(comparison: Changes, calendar: Calendar, top: int = TOP) -> Iterator[Element]:
    now, before = (Period(stamp.from_ns, stamp.to_ns) for stamp in (comparison.stamp, comparison.before))
    yield f"{calendar.text(now)}, compared with {calendar.text(before)}  [{AMORTIZED}; {comparison.stamp}]"
    if not comparison.before.verified:
        yield "The ledger of the period before is NOT VERIFIED."
    yield sentence(comparison)
    yield table(comparison, top)


def table(comparison: Changes, top: int = TOP) -> Table:
    shown = [effect for effect in EFFECTS if any(group.effects[effect] for group in comparison.groups)]

    def row(name: str, groups: tuple[Group, ...]) -> Row:
        effects = (sum(group.effects[effect] for group in groups) for effect in shown)
        costs = (sum(group.before_nano for group in groups), sum(group.cost_nano for group in groups))
        return (name, *costs, costs[1] - costs[0], *effects)

    rest = comparison.groups[top:]
    names = ("before", "now", "change", *shown)
    return Table(
        title="",
        columns=(Column(comparison.by), *(Column(name, "money") for name in names)),
        rows=(
            *(row(group.name, (group,)) for group in comparison.groups[:top]),
            *([row(f"{len(rest)} others", rest)] if rest else []),
        ),
        footer=(row("total", comparison.groups),),
    )
