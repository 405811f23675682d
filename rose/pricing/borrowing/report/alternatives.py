"""The borrow against its alternatives as tables, and in sentences: was it worth it, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from rose.ledger.examine import Seen
from rose.pricing.borrowing import alternatives
from rose.pricing.borrowing.alternatives import Comparison
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report.marginal import charged
from rose.pricing.borrowing.report.provision import BREAK_EVEN_CASH, BREAK_EVEN_TIME
from rose.pricing.borrowing.report.savings import NO_TOKENS, Savings, both_ends, condition, purchase, savings
from rose.pricing.borrowing.savings import DEDICATED, LOADED, NOTHING, Alternative, Saving
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.borrowing.terms import basis_of
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, NOT_SET, Figure, Figures
from rose.pricing.money import NS_PER_HOUR, format_usd, nano_usd_of
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.table import Paragraph, Row, Section, Table, columns

_NOT_BOTH = (
    "not enough data: it takes useful tokens on both borrowed and dedicated devices, and a borrow that cost money"
)
_MILLION = 10**6
_DOES_NOT_APPLY = "does not apply: none would be made"
#: Names of what is moved until borrowing stops paying, beside the provision.
PER_MILLION, PER_HOUR, WASTED = "charge for a million useful tokens", "charge for a device-hour", "wasted share"
PER_GB = "price of a GB sent"
#: Rows of the savings.
CAPACITY, CASH, ADDED = "capacity avoided", "cash saved", "added by borrowing"


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
    *,
    seen: Seen | None = None,
) -> Savings:
    """Return what borrowing saved in a run. Raises what `rose.pricing.run.priced.priced` raises."""
    with priced(root, run_id, price_book, allow_unverified, seen) as run:
        return savings(run.make, _compared(run, run.borrow), run.borrow)


def comparison(run: PricedRun, gave_back: Sequence[Span] = ()) -> Section:
    """Return the comparison of a run. Raises PricingError for a span of a device that is no serving one."""
    m = charged(run, gave_back)
    compared = _compared(run, m)
    make, tokens, times = run.make, compared.tokens, compared.multiplier
    made = savings(make, compared, m)
    borrowed = make.money(
        compared.charged_usd, MARGINAL, basis=m.basis, interval=m.charged_interval, no_interval=m.no_interval
    )
    title = f"The same {tokens:,} useful tokens otherwise"
    parts: dict[str, Table | Paragraph] = {
        "savings": Table(
            title="What borrowing saved; the two figures are never added",
            view="marginal, but capacity avoided amortized",
            stamp=run.stamp,
            columns=columns("what", "value", "rests on", text=("rests on",)),
            rows=(
                (CASH, made.cash_saved, made.rests_on["cash_saved"]),
                *((f"{CASH} {end}", figure, "") for end, figure in made.cash_saved_if.items()),
                (CAPACITY, made.capacity_avoided, made.rests_on["capacity_avoided"]),
                ("added on dedicated devices", made.added_there, ""),
                (ADDED, made.added, ""),
                ("dedicated device time needed", made.needed, ""),
                ("idle time of dedicated devices", made.idle, ""),
                ("useful tokens borrowed", make.number(tokens, "tokens"), ""),
            ),
        ),
        "bill": Table(
            title=f"{title}: on the bill",
            view=MARGINAL,
            stamp=run.stamp,
            columns=columns("way", "added to the bill", "cash saved"),
            rows=tuple(_on_the_bill(make, way, m) for way in compared.alternatives if way.name != LOADED),
            footer=(("borrowed", borrowed, None),),
            notes=(f"Borrowed: what borrowing added to the bill{condition(m)}.",),
        ),
        "device_time": Table(
            title=f"{title}: device time",
            view="amortized; hypothetical but for what was borrowed",
            stamp=run.stamp,
            columns=columns("way", "cost", "per million", "less by borrowing"),
            rows=tuple(_device_time(make, way, tokens) for way in compared.alternatives if way.name != NOTHING),
            footer=(
                (
                    "borrowed",
                    make.money(compared.borrowed.usd, AMORTIZED),
                    _per_million(make, compared.borrowed.usd, tokens, AMORTIZED, "measured"),
                    None,
                ),
            ),
            notes=("The first row is the capacity avoided; it is no saving.",),
        ),
        "how": Table(
            title="How each was worked out",
            view="both views",
            stamp=run.stamp,
            columns=columns("way", "how", text=("how",)),
            rows=tuple(
                (
                    way.name,
                    way.explained
                    + (f"; {purchase(way.bought)}" if way.bought is not None and way.name == DEDICATED else ""),
                )
                for way in compared.alternatives
            ),
        ),
        "multiplier": Table(
            title="M = (1 + cost ratio) / throughput gain",
            view="ratios",
            stamp=run.stamp,
            columns=columns("what", "value"),
            rows=(
                (
                    "throughput gain",
                    make.part(None if times is None else times.throughput_gain, unit="ratio", why=_NOT_BOTH),
                ),
                ("cost ratio", make.part(None if times is None else times.cost_ratio, unit="ratio", why=_NOT_BOTH)),
                ("M", make.measure(None if times is None else times.m, why=_NOT_BOTH)),
            ),
        ),
        "says": Paragraph(in_short(compared, m)),
    }
    if compared.flip is not None:
        parts["flips"] = _flips(run, m, compared)
    return Section(parts)


def _compared(run: PricedRun, m: Marginal) -> Comparison:
    turns = rows(run.connection, "borrowing/turn_lengths")
    return alternatives.compare(run.charged, run.allocation, m, run.groups, turns, run.cost.spreads)


def _per_million(make: Figures, usd: Fraction | None, tokens: int, view: str, basis: str) -> Figure:
    per_million = None if usd is None or not tokens else usd * _MILLION / tokens
    return make.money(per_million, view, per="million useful tokens", basis=basis, why=NO_TOKENS)


def _on_the_bill(make: Figures, way: Alternative, m: Marginal) -> Row:
    cash = None if m.unstated_usd else way.cash
    return (
        way.name,
        make.money(way.added_usd, MARGINAL, basis=way.basis, why=way.why),
        _saving(make, cash, MARGINAL, basis_of([way.basis, m.basis]), both_ends(way.cash, m) or way.why),
    )


def _device_time(make: Figures, way: Alternative, tokens: int) -> Row:
    """Amortized, but fully loaded for `LOADED`: the borrow is compared with a way in the same view."""
    view = FULLY_LOADED if way.name == LOADED else AMORTIZED
    return (
        way.name,
        make.money(way.usd, view, basis=way.basis, why=way.why, interval=way.interval, no_interval=way.no_interval),
        _per_million(make, way.usd, tokens, view, way.basis),
        _saving(make, way.less, view, way.basis, way.why or _DOES_NOT_APPLY),
    )


def _saving(make: Figures, saving: Saving | None, view: str, basis: str, why: str | None) -> Figure:
    if saving is None:
        return make.money(None, view, why=why)
    return make.money(saving.usd, view, basis=basis, interval=saving.interval, no_interval=saving.no_interval)


def _flips(run: PricedRun, m: Marginal, compared: Comparison) -> Table:
    """Each figure as it is, and where borrowing would add as much to the bill as dedicated devices."""
    flip, make = compared.flip, run.make
    assert flip is not None
    hours = Fraction(m.borrowed_ns, NS_PER_HOUR)
    sent_gb = Fraction(m.sent_bytes, 10**9)
    provision = m.terms["provision"]

    def money(usd: Fraction | None, per: str, why: str | None = None) -> Figure:
        return make.money(usd, MARGINAL, per=per, basis=m.basis, why=why)

    sent = money(m.terms["transfer"].usd / sent_gb if sent_gb else None, "GB", "nothing was sent")
    set_aside = None if provision.unknown else provision.usd / hours
    return Table(
        title="Where borrowing stops paying: break-even against cash",
        view=MARGINAL,
        stamp=run.stamp,
        columns=columns("what", "now", "stops paying at"),
        rows=(
            (
                PER_MILLION,
                _per_million(make, compared.charged_usd, compared.tokens, MARGINAL, m.basis),
                money(flip.usd_per_million_useful, "million useful tokens"),
            ),
            (
                PER_HOUR,
                money(compared.charged_usd / hours, "device-hour"),
                money(flip.usd_per_device_hour, "device-hour"),
            ),
            (
                WASTED,
                make.part(compared.borrowed.wasted_share),
                make.part(flip.wasted_share, why="no share of waste by itself"),
            ),
            (
                PER_GB,
                sent,
                money(flip.usd_per_gb, "GB", "no price of a GB by itself" if sent_gb else "nothing was sent"),
            ),
            (
                f"{BREAK_EVEN_CASH}, a device-hour",
                money(set_aside, "device-hour", provision.missing or NOT_SET),
                money(flip.provision_usd_per_device_hour, "device-hour"),
            ),
        ),
        notes=(
            "Each moved alone until cash saved is nothing. Device time that would not have been bought otherwise is "
            f"nothing here; in the {BREAK_EVEN_TIME} it has its amortized price.",
        ),
    )


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


def _usd(usd: Fraction) -> str:
    return format_usd(nano_usd_of(usd))
