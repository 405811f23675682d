"""Borrowing compared with its alternatives, as tables and sentences."""

from fractions import Fraction

from rose.pricing import formulas
from rose.pricing.borrowing.alternatives import Comparison, compare
from rose.pricing.borrowing.savings import LOADED, NOTHING, Alternative, Bought, Saving
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, Figure, Figures
from rose.pricing.marginal_cost.marginal import Marginal, plain
from rose.pricing.marginal_cost.terms import basis_of
from rose.pricing.money import format_ns, format_usd, nano_usd_of
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.verdict import exceeds
from rose.pricing.table import Paragraph, Row, Section, Table, notes, report_table

NO_TOKENS = "not enough data: no useful token was made on borrowed devices"
WOULD, WOULD_NOT = "if the fleet would have been there anyway", "if it would not"
CAPACITY, CASH = "capacity avoided", "saved against buying"
ADDED, ADDED_THERE, LET_GO = "added by borrowing", "would have cost to buy", "devices let go"
NEEDED, IDLE = "dedicated device time needed", "idle time of dedicated devices"
_NOT_BOTH = "not enough data: need useful tokens on both borrowed and dedicated devices, and borrowing that cost money"
_MILLION = 10**6


def savings_table(make: Figures, compared: Comparison, m: Marginal) -> Table:
    way = compared.way
    bought, cash = (None, None) if way is None else (way.bought, way.cash)
    basis = basis_of([m.basis] if way is None else [way.basis, m.basis])
    there = "measured" if way is None else way.basis
    left_out = _left_out(m)
    components = f"{ADDED_THERE}, plus {LET_GO}, less {ADDED}"
    rows: list[Row] = [(CASH, _cash_figure(make, cash, m, basis, NO_TOKENS), components)]
    if cash is not None and m.unstated_usd:
        far = Saving(usd=cash.usd - m.unstated_usd, no_interval="it is the lower end of the range")
        ends = (WOULD, cash), (WOULD_NOT, far)
        rows += [(f"{CASH} {end}", _figure(make, saving, MARGINAL, basis), "") for end, saving in ends]
    added_there = make.money(None if way is None else way.added_usd, MARGINAL, basis=there, why=NO_TOKENS)
    rows += [
        (CAPACITY, _figure(make, way, AMORTIZED, there, NO_TOKENS), _capacity(way)),
        (ADDED_THERE, added_there, NO_TOKENS if bought is None else purchase(bought)),
        (LET_GO, make.money(m.let_go_usd, MARGINAL), _let_go(m)),
        (ADDED, _charged(make, m), condition(m)),
        (NEEDED, make.number(None if bought is None else round(bought.needed_ns), "ns", why=NO_TOKENS), ""),
        (IDLE, make.number(None if bought is None else round(bought.idle_ns), "ns", why=NO_TOKENS), ""),
        ("useful tokens borrowed", make.number(compared.borrowed.useful, "tokens"), ""),
    ]
    return report_table(
        make.stamp,
        "Savings of borrowing; never add capacity avoided to the others",
        "what | value | rests on",
        rows,
        view="marginal, but capacity avoided amortized and hypothetical",
        text=("rests on",),
        notes=notes(
            f"{CASH.capitalize()} is this figure or less; neither known nor priced: {left_out}." if left_out else ""
        ),
    )


def comparison(run: PricedRun) -> Section:
    m, make, compared = run.borrow, run.make, compare(run)
    tokens, ways = compared.borrowed.useful, compared.alternatives
    title = f"The same {tokens:,} useful tokens otherwise"
    bought = None if compared.way is None else compared.way.bought
    borrowed_usd = compared.borrowed.usd
    borrowed_per_million = _per_million(make, borrowed_usd, tokens, AMORTIZED, "measured")
    parts: dict[str, Table | Paragraph] = {
        "savings": savings_table(make, compared, m),
        "bill": report_table(
            run.stamp,
            f"{title}: if bought",
            f"way | marginal cost | {CASH}",
            (
                (
                    way.name,
                    make.money(way.added_usd, MARGINAL, basis=way.basis, why=way.why),
                    _cash_figure(make, way.cash, m, basis_of([way.basis, m.basis]), way.why),
                )
                for way in ways
                if way.name != LOADED
            ),
            view=MARGINAL,
            footer=(("borrowed", _charged(make, m), None),),
            notes=(f"Borrowed: what borrowing added to the bill, {condition(m)}.",),
        ),
        "device_time": report_table(
            run.stamp,
            f"{title}: device time",
            "way | cost | per million | less by borrowing",
            (_device_time(make, way, tokens) for way in ways if way.name != NOTHING),
            view="amortized; hypothetical but for what was borrowed",
            footer=(("borrowed", make.money(borrowed_usd, AMORTIZED), borrowed_per_million, None),),
            notes=("The first row is the capacity avoided; it is no saving.",),
        ),
        "how": report_table(
            run.stamp,
            "How each alternative is computed",
            "way | how",
            (
                (way.name, f"{way.explained}; {purchase(bought)}" if bought and way is compared.way else way.explained)
                for way in ways
            ),
            view="both views",
            text=("how",),
        ),
        "multiplier": report_table(
            run.stamp,
            "M = (1 + cost ratio) / throughput gain",
            "what | value",
            multiplier(make, tokens, compared.dedicated.useful, m.charged_usd, compared.dedicated.usd),
            view="ratios",
        ),
        "says": Paragraph(in_short(compared, m)),
    }
    return Section(parts)


def multiplier(
    make: Figures, borrowed_useful: int, dedicated_useful: int, charged_usd: Fraction, dedicated_usd: Fraction
) -> tuple[Row, ...]:
    """Return rows for the cost multiplier M and its factors. Their values are unknown if borrowing lowered the bill."""
    gain = ratio = m = None
    if borrowed_useful and dedicated_useful and charged_usd >= 0 and dedicated_usd > 0:
        gain, ratio = Fraction(borrowed_useful + dedicated_useful, dedicated_useful), charged_usd / dedicated_usd
        m = formulas.cost_multiplier(float(gain), float(ratio))
    factors = {"throughput gain": gain, "cost ratio": ratio, "M": m}
    return tuple((name, make.measure(value, why=_NOT_BOTH)) for name, value in factors.items())


def _device_time(make: Figures, way: Alternative, tokens: int) -> Row:
    view = FULLY_LOADED if way.name == LOADED else AMORTIZED
    return (
        way.name,
        _figure(make, way, view, way.basis, way.why),
        _per_million(make, way.usd, tokens, view, way.basis),
        _figure(make, way.less, view, way.basis, way.why or "does not apply: no token would be made"),
    )


def _per_million(make: Figures, usd: Fraction | None, tokens: int, view: str, basis: str) -> Figure:
    per_million = None if usd is None or not tokens else usd * _MILLION / tokens
    return make.money(per_million, view, per="million useful tokens", basis=basis, why=NO_TOKENS)


def _charged(make: Figures, m: Marginal) -> Figure:
    return make.money(m.charged_usd, MARGINAL, basis=m.basis, interval=m.charged_interval, no_interval=m.no_interval)


def _cash_figure(make: Figures, cash: Saving | None, m: Marginal, basis: str, why: str | None) -> Figure:
    return _figure(make, None if m.unstated_usd else cash, MARGINAL, basis, both_ends(cash, m) or why)


def _figure(make: Figures, cost: Alternative | Saving | None, view: str, basis: str, why: str | None = None) -> Figure:
    if cost is None:
        return make.money(None, view, basis=basis, why=why)
    return make.money(cost.usd, view, basis=basis, why=why, interval=cost.interval, no_interval=cost.no_interval)


def in_short(compared: Comparison, m: Marginal) -> str:
    way = compared.way
    if way is None or way.cash is None:
        return f"Savings are unknown: {NO_TOKENS.removeprefix('not enough data: ')}."
    judged = _judged(way.cash, m)
    left_out = _left_out(m)
    cash, ending = both_ends(way.cash, m), ""
    if cash is None:
        cash, ending = f"{_usd(way.cash.usd)}{' or less' if left_out else ''}", f", {condition(m)}"
        if (interval := way.cash.interval) is not None and interval.high is not None:
            cash += f", 95% {_usd(Fraction(interval.low))} to {_usd(Fraction(interval.high))}"
    text = f"{judged[0].upper()}{judged[1:]}, against buying {way.name}: saved {cash}{ending}."
    return f"{text} Neither known nor priced: {left_out}." if left_out else text


def _left_out(m: Marginal) -> str:
    return ", ".join(plain(name) for name in (*m.missing, *m.absent))


def _judged(cash: Saving, m: Marginal) -> str:
    """Return a verdict on borrowing as text. It is "worth it" only if the whole interval of the saving is above 0."""
    if m.unstated_usd:
        if cash.usd - m.unstated_usd > 0:
            return "borrowing came out cheaper whether or not the fleet would exist anyway"
        if cash.usd < 0:
            return "borrowing came out dearer whether or not the fleet would have been there anyway"
        return "whether borrowing saved depends on whether the fleet would have been there anyway"
    if cash.interval is None:
        side = "cheaper" if cash.usd > 0 else "dearer" if cash.usd < 0 else "as dear"
        return f"borrowing came out {side}, without an interval ({cash.no_interval})"
    if (better := exceeds(cash.interval.low, cash.interval.high)) is None:
        return "borrowing was neither better nor worse within the interval"
    if not better:
        return "borrowing was NOT worth it"
    return "borrowing was worth it" + (", unless unknown costs exceed it" if m.missing or m.absent else "")


def worth_it(cash: Saving | None, m: Marginal) -> bool | None:
    """Return True if borrowing surely saved money against buying, False if it surely did not, otherwise None."""
    if cash is None or cash.interval is None or m.unstated_usd:
        return None
    better = exceeds(cash.interval.low, cash.interval.high)
    return None if better and (m.missing or m.absent) else better


def both_ends(cash: Saving | None, m: Marginal) -> str | None:
    """Return two savings as text: for a fleet that would exist without leases, and for a fleet that would not. Return
    None if `cash` is None, or if the price book has `idle_anyway`, the probability of the first case."""
    if cash is None or not m.unstated_usd:
        return None
    ends = f"{_usd(cash.usd)} {WOULD}, {_usd(cash.usd - m.unstated_usd)} {WOULD_NOT}"
    return f"{ends}: the price book states no idle_anyway"


def condition(m: Marginal) -> str:
    if m.idle_anyway is None:
        return f"{WOULD}: the price book does not say"
    if m.idle_anyway == 1:
        return "as the price book states that the fleet would exist anyway"
    return f"as the price book gives a chance of {float(m.idle_anyway):.0%} that the fleet would exist anyway"


def purchase(bought: Bought) -> str:
    needed, idle, beyond = (format_ns(round(ns)) for ns in (bought.needed_ns, bought.idle_ns, bought.beyond_ns))
    text = f"dedicated devices would have taken {needed} and sat idle for {idle}"
    if not bought.bought_ns:
        return f"{text}, so nothing would have been bought"
    units = ""
    if bought.increment_ns is not None and bought.increment_hours is not None:
        hours = f"{bought.increment_hours.normalize():f}"
        units = f", {bought.bought_ns / bought.increment_ns} x {hours} device-hour{'' if hours == '1' else 's'}"
    return (
        f"{text}; the other {beyond} would have been bought{units}, at {_usd(bought.usd_per_device_hour)} an hour, "
        f"{_usd(bought.usd)}"
    )


def _let_go(m: Marginal) -> str:
    if m.on_fleet:
        return "they count for the fleet, not for a run on it"
    return "recorded decisions" if m.let_go_usd else "no decision is recorded"


def _capacity(way: Alternative | None) -> str:
    if way is None or way.bought is None:
        return NO_TOKENS
    took, price_text = format_ns(round(way.bought.needed_ns)), _usd(way.bought.usd_per_device_hour)
    assumed = " (assumed as fast as borrowed ones)" if way.basis == "assumed" else ""
    return f"{took} of dedicated devices{assumed} at {price_text} an hour; hypothetical: nobody would have been billed"


def _usd(usd: Fraction) -> str:
    return format_usd(nano_usd_of(usd))
