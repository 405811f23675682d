"""The borrow against its alternatives as figures, and in sentences: was it worth it, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rose.ledger.examine import Seen
from rose.pricing.borrowing import alternatives
from rose.pricing.borrowing.alternatives import Comparison
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report.common import MILLION, Head, head
from rose.pricing.borrowing.report.marginal import charged
from rose.pricing.borrowing.report.savings import NO_TOKENS, Savings, both_ends, condition, purchase, savings
from rose.pricing.borrowing.savings import DEDICATED, LOADED, NOTHING, Alternative, Saving
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, NOT_SET, Figure, Figures
from rose.pricing.money import NS_PER_HOUR, format_usd, nano_usd_of
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows
from rose.pricing.run.priced import PricedRun, priced

_NOT_BOTH = (
    "not enough data: it takes useful tokens on both borrowed and dedicated devices, and a borrow that cost money"
)
#: Names of what is moved until borrowing stops paying.
PER_MILLION, PER_HOUR, WASTED = "charge for a million useful tokens", "charge for a device-hour", "wasted share"
PER_GB, PROVISION = "price of a GB sent", "provision for a device-hour"


@dataclass(frozen=True, kw_only=True, slots=True)
class WayRow:
    """Another way to the same tokens; what was saved is below zero where borrowing cost more.

    `cost`, `per_million` and `less` are amortized (fully loaded for `LOADED`), `added` and `cash_saved` marginal: in
    each view the borrow is compared with the other way in that view.
    """

    cost: Figure
    per_million: Figure
    #: `cost` less what the borrowed tokens cost in the same view.
    less: Figure
    #: What it would have added to the bill, and that less what borrowing added.
    added: Figure
    cash_saved: Figure
    explained: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FlipRow:
    """One figure as it is, and where it would have to be for borrowing to add as much to the bill as the first way."""

    now: Figure
    flips_at: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareDocument:
    head: Head
    #: Useful tokens made on borrowed devices; what the borrow added to the bill for them (marginal), and what their
    #: device time cost (amortized).
    tokens: Figure
    charged: Figure
    charged_per_million: Figure
    borrowed_cost: Figure
    borrowed_per_million: Figure
    savings: Savings
    #: What the marginal figures hold under.
    condition: str
    ways: Mapping[str, WayRow]
    flips: Mapping[str, FlipRow]
    #: Whether borrowing saved cash against the first way, and what that leaves out.
    in_short: str
    #: [D] M = (1 + cost_ratio) / throughput_gain.
    throughput_gain: Figure
    cost_ratio: Figure
    multiplier: Figure
    says: tuple[str, ...]


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
    *,
    gave_back: Sequence[Span] = (),
    seen: Seen | None = None,
) -> CompareDocument:
    """The comparison of a run. Raises what `rose.pricing.borrowing.report.marginal.build` raises."""
    with priced(root, run_id, price_book, allow_unverified, seen) as run:
        return document(run, gave_back)


def document(run: PricedRun, gave_back: Sequence[Span] = ()) -> CompareDocument:
    """The comparison of a run that is priced. Raises PricingError for a span of a device that is no serving one."""
    m = charged(run, gave_back)
    comparison = alternatives.compare(
        run.charged, run.allocation, m, run.groups, rows(run.connection, "borrowing/turn_lengths"), run.cost.spreads
    )
    make, times = run.make, comparison.multiplier
    return CompareDocument(
        head=head(run),
        tokens=make.number(comparison.tokens, "tokens"),
        charged=make.money(
            comparison.charged_usd, MARGINAL, basis=m.basis, interval=m.charged_interval, no_interval=m.no_interval
        ),
        charged_per_million=_per_million(make, comparison.charged_usd, comparison.tokens, MARGINAL, m.basis),
        borrowed_cost=make.money(comparison.borrowed.usd, AMORTIZED),
        borrowed_per_million=_per_million(make, comparison.borrowed.usd, comparison.tokens, AMORTIZED, "measured"),
        savings=savings(make, comparison, m),
        condition=f"Borrowed: what borrowing added to the bill{condition(m)}.",
        ways={way.name: _way(make, way, comparison.tokens, m) for way in comparison.alternatives},
        flips=_flips(make, m, comparison),
        in_short=in_short(comparison, m),
        throughput_gain=make.part(times.throughput_gain if times else None, unit="ratio", why=_NOT_BOTH),
        cost_ratio=make.part(times.cost_ratio if times else None, unit="ratio", why=_NOT_BOTH),
        multiplier=make.part(Fraction(times.m) if times else None, unit="ratio", why=_NOT_BOTH),
        says=says(comparison, m),
    )


def _per_million(make: Figures, usd: Fraction | None, tokens: int, view: str, basis: str) -> Figure:
    per_million = None if usd is None or not tokens else usd * MILLION / tokens
    return make.money(per_million, view, per="million useful tokens", basis=basis, why=NO_TOKENS)


def _way(make: Figures, way: Alternative, tokens: int, m: Marginal) -> WayRow:
    view = FULLY_LOADED if way.name == LOADED else AMORTIZED
    per_million = _per_million(make, way.usd, tokens, view, way.basis)
    if way.name == NOTHING:
        per_million = make.money(None, view, per="million useful tokens", why="does not apply: none would be made")
    why = way.why or ("does not apply: the same devices" if way.name == LOADED else None)
    added = way.added_usd
    return WayRow(
        cost=make.money(
            way.usd, view, basis=way.basis, why=way.why, interval=way.interval, no_interval=way.no_interval
        ),
        per_million=per_million,
        less=_saving(make, way.less, view, way.basis, way.why or "does not apply: none would be made"),
        added=make.money(added, MARGINAL, basis=way.basis, why=why),
        cash_saved=_saving(
            make, None if m.unstated_usd else way.cash, MARGINAL, way.basis, both_ends(way.cash, m) or why
        ),
        explained=way.explained + (f"; {purchase(way.bought)}" if way.bought and way.name == DEDICATED else ""),
    )


def _saving(make: Figures, saving: Saving | None, view: str, basis: str, why: str | None) -> Figure:
    if saving is None:
        return make.money(None, view, why=why)
    return make.money(saving.usd, view, basis=basis, interval=saving.interval, no_interval=saving.no_interval)


def _flips(make: Figures, m: Marginal, comparison: Comparison) -> dict[str, FlipRow]:
    flip = comparison.flip
    if flip is None:
        return {}
    hours = Fraction(m.borrowed_ns, NS_PER_HOUR)
    sent_gb = Fraction(m.sent_bytes, 10**9)
    provision = m.terms["provision"]

    def money(usd: Fraction | None, per: str, why: str | None = None) -> Figure:
        return make.money(usd, MARGINAL, per=per, basis=m.basis, why=why)

    return {
        PER_MILLION: FlipRow(
            now=_per_million(make, comparison.charged_usd, comparison.tokens, MARGINAL, m.basis),
            flips_at=money(flip.usd_per_million_useful, "million useful tokens"),
        ),
        PER_HOUR: FlipRow(
            now=money(comparison.charged_usd / hours, "device-hour"),
            flips_at=money(flip.usd_per_device_hour, "device-hour"),
        ),
        WASTED: FlipRow(
            now=make.part(comparison.borrowed.wasted_share),
            flips_at=make.part(flip.wasted_share, why="no share of waste by itself"),
        ),
        PER_GB: FlipRow(
            now=money(m.terms["transfer"].usd / sent_gb if sent_gb else None, "GB", "nothing was sent"),
            flips_at=money(flip.usd_per_gb, "GB", "no price of a GB by itself" if sent_gb else "nothing was sent"),
        ),
        PROVISION: FlipRow(
            now=money(
                None if provision.unknown else provision.usd / hours,
                "device-hour",
                provision.missing or NOT_SET,
            ),
            flips_at=money(flip.provision_usd_per_device_hour, "device-hour"),
        ),
    }


def says(comparison: Comparison, m: Marginal) -> tuple[str, ...]:
    """Whether borrowing was worth it against each way, where it flips, and what the figures are without."""
    if not comparison.tokens:
        return (f"Nothing can be said: {NO_TOKENS.removeprefix('not enough data: ')}.",)
    lines = [_verdict(way, comparison, m) for way in comparison.alternatives if way.name != LOADED]
    if comparison.flip is not None:
        lines.append(_turn(comparison.alternatives[0], comparison))
    if (times := comparison.multiplier) is not None:
        lines.append(
            f"With the borrow a useful token cost {times.m:.3f} times what it cost without: throughput grew "
            f"{float(times.throughput_gain):.3f} times, and the borrow cost {float(times.cost_ratio):.3f} times what "
            f"the dedicated rollouts did. It is cheaper only while that is below "
            f"{float(times.throughput_gain) - 1:.3f}."
        )
    if m.missing:
        lines.append(f"All of this is without {' and '.join(m.missing)}, for which there is not enough data.")
    return tuple(lines)


def in_short(comparison: Comparison, m: Marginal) -> str:
    """Whether borrowing saved cash against dedicated devices, in a sentence, and in another what that leaves out."""
    way = comparison.alternatives[0] if comparison.alternatives else None
    if way is None or way.cash is None:
        return f"Whether borrowing saves is not known: {NO_TOKENS.removeprefix('not enough data: ')}."
    judged = _judged(way.cash, m)
    ending = "" if m.unstated_usd else condition(m)
    left_out = ", ".join(name.replace("_", " ") for name in (*m.missing, *m.absent))
    without = f" It leaves out what is neither known nor priced: {left_out}." if left_out else ""
    return f"{judged[0].upper()}{judged[1:]}, against {way.name}: cash saved {_cash(way.cash, m)}{ending}.{without}"


def _verdict(way: Alternative, comparison: Comparison, m: Marginal) -> str:
    if way.cash is None or way.usd is None:
        return f"Against {way.name}: {way.why}."
    if way.name == NOTHING:
        per_million = _text_per_million(comparison.charged_usd, comparison)
        return (
            f"Against {way.name}: {_usd(comparison.charged_usd)} would not have been spent and {comparison.tokens:,} "
            "useful tokens not made. Borrowing was worth it only if a million of them are worth more than "
            f"{per_million}."
        )
    assumed = " (assumed)" if way.basis == "assumed" else ""
    added, charged = way.added_usd or Fraction(0), comparison.charged_usd
    borrowed, otherwise = (_text_per_million(usd, comparison) for usd in (comparison.borrowed.usd, way.usd))
    return (
        f"Against {way.name}{assumed}: {_judged(way.cash, m)}. The bill would have been {_usd(added)} higher there, "
        f"and borrowing added {_usd(charged)}{condition(m)}: cash saved {_cash(way.cash, m)}. Amortized, a million "
        f"useful tokens cost {borrowed} borrowed and {otherwise} there."
    )


def _cash(cash: Saving, m: Marginal) -> str:
    if (ends := both_ends(cash, m)) is not None:
        return ends
    if cash.interval is None or cash.interval.high is None:
        return _usd(cash.usd)
    low, high = (_usd(Fraction(end)) for end in (cash.interval.low, cash.interval.high))
    return f"{_usd(cash.usd)}, 95% {low} to {high}"


def _judged(cash: Saving, m: Marginal) -> str:
    if m.unstated_usd:
        least = cash.usd - m.unstated_usd
        if least > 0:
            return "borrowing came out cheaper whether or not the fleet would have been there anyway"
        if cash.usd < 0:
            return "borrowing came out dearer whether or not the fleet would have been there anyway"
        return "whether borrowing saved cash hangs on whether the fleet would have been there anyway"
    if cash.interval is None or cash.interval.high is None:
        side = "cheaper" if cash.usd > 0 else "dearer" if cash.usd < 0 else "as dear"
        return f"borrowing came out {side}, and how sure that is cannot be told ({cash.no_interval})"
    # A draw without any borrowed token saves nothing, and speaks for neither side.
    if cash.interval.low >= 0 < cash.usd:
        return "borrowing was worth it"
    if cash.interval.high <= 0 > cash.usd:
        return "borrowing was NOT worth it"
    return "borrowing was neither better nor worse as far as can be told"


def _turn(way: Alternative, comparison: Comparison) -> str:
    """The regime in which borrowing does not pay, with its numbers."""
    flip = comparison.flip
    assert flip is not None and way.cash is not None  # noqa: PT018 - the caller looked
    ends = [f"a borrowed device-hour is charged {_usd(flip.usd_per_device_hour)} or more in all"]
    if flip.wasted_share is not None:
        ends.append(f"{float(flip.wasted_share):.1%} or more of the borrowed tokens are wasted")
    if flip.usd_per_gb is not None:
        ends.append(f"sending a GB of weights costs {_usd(flip.usd_per_gb)} or more")
    ends.append(f"missed budgets cost {_usd(flip.provision_usd_per_device_hour)} or more a borrowed device-hour")
    verb = "stops paying" if way.cash.usd > 0 else "does not pay"
    return f"In cash, against {way.name}, borrowing {verb} as soon as one of these holds: {'; '.join(ends)}."


def _text_per_million(usd: Fraction, comparison: Comparison) -> str:
    return _usd(usd * MILLION / comparison.tokens)


def _usd(usd: Fraction) -> str:
    return format_usd(nano_usd_of(usd))
