"""Tables about the cost of a correct answer in one run."""

from fractions import Fraction
from pathlib import Path

from rose.pricing.answers import breakdown, frontier, levers, verifiers
from rose.pricing.answers.breakdown import BreakdownRow, By
from rose.pricing.answers.levers import Lever
from rose.pricing.charges.allocation import ROLLOUT_BUCKETS
from rose.pricing.figures import AMORTIZED, BLENDED, MARGINAL, Figure
from rose.pricing.money import NANO_USD_PER_USD, PricingError
from rose.pricing.run import cost_per_correct
from rose.pricing.run.cost_per_correct import Resamples
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.table import Paragraph, Row, Section, Table, report_table, values

_MILLION = 10**6
_PER = "million answer tokens"
_VIEW_OF_LINE = {"serving": AMORTIZED, "dedicated": AMORTIZED, "opportunistic": MARGINAL, "blended": BLENDED}
FACTORS = {
    "cpm": "price of a million serving tokens (CPM)",
    "r": "output tokens for each answer token (R)",
    "rho": "rollouts beyond the kept rollout (rho)",
    "alpha": "share of groups with an accepted answer (alpha)",
    "accept_rate": "share of single trajectories accepted",
    "phi": "share of rollout tokens made on borrowed devices (phi)",
    "ppv": "correct share of audited accepted answers (PPV)",
}
THOUSAND = "A thousand accepted answers (amortized)"  #: The headline everywhere.
C3, C3_PER_CORRECT = "C3, per million answer tokens", "C3 / PPV, per million correct answer tokens"
_SHARES = {  #: Factors that are a share of trials, as `cost_per_correct.share_interval` counts them.
    "alpha": ("solved", "judged_groups"),
    "accept_rate": ("accepted", "judged"),
    "ppv": ("audited_correct", "audited"),
}
NO_VERDICT = "not enough data: no verdict yet"
_UNKNOWN = "not enough data: a factor of the formula is not known"
_BELOW = "does not apply: borrowing lowered the bill, so the formula has no price to use"
_NO_PRICE = "not enough data: serving's own price of a token is not known"
_NOT_AUDITED = "not enough data: no accepted trajectory was audited and found correct"


def sections(
    run: PricedRun, only: str | None = None, by: By | None = None, probes: Path | None = None
) -> dict[str, Section]:
    """Return the section `only`; None means cost, frontier and verifiers. Raises PricingError for unusable probes."""
    made = {}
    if only in (None, "cost"):
        made["cost"] = cost(run, by)
    if only in (None, "frontier"):
        made["frontier"] = frontier.frontier(run)
    if only in (None, "verifiers"):
        try:
            made["verifiers"] = verifiers.procurement(run, probes)
        except PricingError as error:
            if only is not None or probes is not None:
                raise
            made["verifiers"] = Section({"missing": Paragraph(f"Verifiers cannot be compared: {error}.")})
    return made


def cost(run: PricedRun, by: By | None = None) -> Section:
    tables = lines_and_c3(run, cost_per_correct.resample(run.groups))
    headline = values("Cost of accepted answers", {THOUSAND: thousand(run)}, run.stamp, AMORTIZED)
    parts: dict[str, Table | Paragraph] = {"headline": headline, **tables}
    at = levers.factors(run.cpm_usd, run.cost, run.tokens, run.groups)
    if at is None or not at.cost:
        parts["says"] = Paragraph("Levers cannot be ranked: a factor of C3 is unknown, or C3 is 0.")
    else:
        ranked = levers.levers(at)
        parts["levers"] = report_table(
            run.stamp,
            "Levers by saving at list price (hypothetical), dollars per million answer tokens",
            "lever | value | derivative | elasticity | a tenth better | saves",
            (_lever(run, lever) for lever in ranked),
            view=BLENDED,
            notes=("Each lever is moved alone. Fewer rollouts solve fewer groups: the frontier weighs that.",),
        )
        parts["says"] = Paragraph(levers.in_words(ranked))
    if by is not None:
        parts["parts"] = _parts(run, by, tables["lines"].row("blended")["1,000 accepted"])
    return Section(parts)


def thousand(run: PricedRun) -> Figure:
    """Return the amortized dollars of all rollout work for each 1,000 accepted answers."""
    amortized, accepted = run.allocation.amortized_nano_usd(), run.groups.accepted
    rollout_nano = sum(amortized[bucket] for bucket in ROLLOUT_BUCKETS)
    usd = Fraction(rollout_nano, accepted * NANO_USD_PER_USD) if accepted else None
    return run.make.thousand(usd, AMORTIZED, "accepted answers", why=NO_VERDICT)


def lines_and_c3(run: PricedRun, resamples: Resamples | None) -> dict[str, Table]:
    factors = _factors(run, resamples)
    c3, c3_per_correct = _formula(run, "blended", resamples, None)
    return {
        "lines": report_table(
            run.stamp,
            "By price of a rollout token",
            "rollout tokens priced at | a million | over serving's price | 1,000 accepted | 1,000 correct | "
            "list price | view",
            (_line(run, line, resamples) for line in cost_per_correct.LINES),
            view="view by line",
            text=("view",),
            notes=(
                "Blended is what was paid for rollout tokens; other lines price all of them in one way. List price: "
                "a million answer tokens by the formula below, hypothetical.",
            ),
        ),
        "c3": report_table(
            run.stamp,
            "C3 = CPM x R x (1 + pi x rho) / alpha, hypothetical: at list price",
            "what | value",
            ((words, factors[name]) for name, words in FACTORS.items()),
            view=BLENDED,
            footer=(
                (C3, c3),
                (C3_PER_CORRECT, c3_per_correct),
                ("useful tokens", run.make.number(int(run.cost.useful), "tokens")),
            ),
        ),
    }


def _factors(run: PricedRun, resamples: Resamples | None) -> dict[str, Figure]:
    make, groups = run.make, run.groups

    def factor(name: str, value: Fraction | None, unit: str, why: str = NO_VERDICT) -> Figure:
        interval: Interval | None = None
        if resamples is not None and name in _SHARES:
            interval = cost_per_correct.share_interval(groups, *_SHARES[name])
        elif resamples is not None:
            interval = bootstrap.interval(getattr(resamples, name), resamples.units)
        no_interval = None if resamples is None else bootstrap.TOO_FEW
        return make.measure(value, unit, why=why, interval=interval, no_interval=no_interval)

    return {
        "rho": factor("rho", groups.rho, "ratio"),
        "alpha": factor("alpha", groups.alpha, "share"),
        "accept_rate": factor("accept_rate", groups.accept_rate, "share"),
        "r": factor("r", groups.r, "ratio", "not enough data: no trajectory ended with an answer"),
        "cpm": make.money(Fraction(run.cpm_usd), AMORTIZED, per="million tokens", basis="price book"),
        "phi": factor("phi", run.cost.borrowed_share, "share", "not enough data: no useful token was made"),
        "ppv": factor("ppv", groups.ppv, "share", "not enough data: no accepted trajectory was audited"),
    }


def _line(run: PricedRun, line: str, resamples: Resamples | None) -> Row:
    make, cost, groups, view = run.make, run.cost, run.groups, _VIEW_OF_LINE[line]
    basis = "measured" if view == AMORTIZED else run.borrow.basis
    usd = cost.by_line[line]
    why = None if groups.accepted else "not enough data: nothing was accepted yet"
    if usd is None:
        where = {"dedicated": "dedicated", "blended": "any"}.get(line, "borrowed")
        why = f"not enough data: no useful token was made on {where} devices"
    why_no_interval = cost.no_interval(line) or bootstrap.TOO_FEW
    accepted, correct = cost_per_correct.measured_interval(cost, run.tokens, groups, resamples, line)
    per_accepted = cost_per_correct.measured(cost, groups)[line]
    per_correct = per_accepted / groups.ppv if per_accepted is not None and groups.ppv else None

    def answers(usd: Fraction | None, which: str, interval: Interval | None, why: str | None) -> Figure:
        what = f"{which} answers"
        return make.thousand(usd, view, what, basis=basis, why=why, interval=interval, no_interval=why_no_interval)

    return (
        line,
        make.money(None if usd is None else usd * _MILLION, view, per="million tokens", basis=basis, why=why),
        make.part(cost.pi(line), unit="ratio", why=why or _NO_PRICE),
        answers(per_accepted, "accepted", accepted, why),
        answers(per_correct, "correct", correct, why or _NOT_AUDITED),
        _formula(run, line, resamples, why)[0],
        view,
    )


def _formula(run: PricedRun, line: str, resamples: Resamples | None, why: str | None) -> tuple[Figure, Figure]:
    """Return X = CPM * R * (1 + pi * rho) / alpha, and X / PPV. pi is `run.cost.pi(line)`. For `blended`, X is C3."""
    pi, ppv, view = run.cost.pi(line), run.groups.ppv, _VIEW_OF_LINE[line]
    c3 = cost_per_correct.formula(run.cpm_usd, run.groups.r, run.groups, pi)
    usd = None if c3 is None else Fraction(c3)
    interval, over_ppv = cost_per_correct.formula_interval(run.cpm_usd, run.cost, resamples, line)
    why = _BELOW if pi is not None and pi < 0 else why or _UNKNOWN

    def tokens(usd: Fraction | None, per: str, interval: Interval | None, why: str | None) -> Figure:
        no_interval = cost_per_correct.no_formula_interval(run.cost, line) or bootstrap.TOO_FEW
        return run.make.money(
            usd, view, per=per, basis="price book", why=why, interval=interval, no_interval=no_interval
        )

    per_correct, why_not = usd / ppv if usd is not None and ppv else None, why if usd is None else _NOT_AUDITED
    return tokens(usd, _PER, interval, why), tokens(per_correct, "million correct answer tokens", over_ppv, why_not)


def _lever(run: PricedRun, lever: Lever) -> Row:
    unit = "share" if lever.name in ("alpha", "phi", "waste") else "ratio"

    def value(amount: float) -> Figure:
        if lever.name != "cpm":
            return run.make.measure(amount, unit)
        return run.make.money(Fraction(amount), AMORTIZED, per="million tokens", basis="price book")

    return (
        levers.WORDS[lever.name],
        value(lever.value),
        run.make.money(Fraction(lever.derivative), BLENDED, per=f"{_PER}/{lever.name}", basis="price book"),
        run.make.measure(bootstrap.rounded(lever.elasticity)),
        value(lever.to),
        run.make.money(Fraction(lever.saves), BLENDED, per=_PER, basis="price book"),
    )


def _parts(run: PricedRun, by: By, whole: Figure) -> Table:
    make, parts = run.make, breakdown.by(run.connection, run.run.run_id, by, run.cost)
    no_interval = run.cost.no_interval("blended") or bootstrap.TOO_FEW

    def per_accepted(part: BreakdownRow) -> Figure:
        unknown = "does not apply: belongs to no row"
        why = unknown if part.key == breakdown.UNALLOCATED else "not enough data: nothing was accepted"
        usd, what, interval = part.usd_per_accepted, "accepted answers", part.interval
        return make.thousand(usd, BLENDED, what, why=why, interval=interval, no_interval=no_interval)

    def cells(key: str, nano: int, accepted: int, figure: Figure) -> Row:
        return key, make.amount(nano, BLENDED), make.number(accepted, "trajectories"), figure

    cost_nano, accepted = sum(part.cost_nano_usd for part in parts), sum(part.accepted for part in parts)
    return report_table(
        run.stamp,
        f"By {by}",
        f"{by} | cost | accepted | 1,000 accepted",
        (cells(part.key, part.cost_nano_usd, part.accepted, per_accepted(part)) for part in parts),
        view=BLENDED,
        footer=(cells("run", cost_nano, accepted, whole),),
    )
