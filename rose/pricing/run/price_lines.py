"""Cost per correct answer at each price line, its factors and C3, as figures with their intervals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from rose.pricing.answers import cost_per_correct
from rose.pricing.answers.cost_per_correct import Groups, Resamples
from rose.pricing.document import PriceLine
from rose.pricing.figures import AMORTIZED, BLENDED, MARGINAL, Figure
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap

_MILLION = 10**6
_VIEW_OF_LINE = {
    "serving": AMORTIZED,
    "dedicated": AMORTIZED,
    "opportunistic": MARGINAL,
    "blended": BLENDED,
}
_PER = "million answer tokens"
#: Factors that are a share of trials, as `correct.share_interval` counts them.
_SHARES = {"alpha": ("solved", "one"), "accept_rate": ("accepted", "judged"), "ppv": ("audited_correct", "audited")}
_UNKNOWN = "not enough data: a factor of the formula is not known"
_BELOW = "does not apply: the borrow lowered the bill, and the formula takes a price"
_NOT_AUDITED = "not enough data: no accepted trajectory was audited and found correct"


def factors(run: PricedRun, drawn: Resamples | None) -> dict[str, Figure]:
    """rho, alpha, accept_rate, r, cpm (at the token prices in force when the run began), phi, ppv."""
    make, groups = run.make, run.groups
    no_verdict = "not enough data: no verdict yet"
    figures = {
        "rho": make.part(groups.rho, unit="ratio", why=no_verdict),
        "alpha": make.part(groups.alpha, why=no_verdict),
        "accept_rate": make.part(groups.accept_rate, why=no_verdict),
        "r": make.part(groups.r, unit="ratio", why="not enough data: no trajectory ended with an answer"),
        "cpm": make.money(Fraction(run.cpm_usd), AMORTIZED, per="million tokens", basis="price book"),
        "phi": make.part(run.cost.borrowed_share, why="not enough data: no useful token was made"),
        "ppv": make.part(groups.ppv, why="not enough data: no accepted trajectory was audited"),
    }
    for name, figure in figures.items():
        if name == "cpm" or drawn is None or figure.value is None:
            continue
        if name in _SHARES:
            interval = cost_per_correct.share_interval(groups, *_SHARES[name])
        else:
            interval = bootstrap.interval(getattr(drawn, name), drawn.units)
        figures[name] = (
            replace(figure, no_interval=bootstrap.TOO_FEW)
            if interval is None
            else replace(figure, low=interval.low, high=interval.high)
        )
    return figures


def partials(run: PricedRun) -> dict[str, Figure]:
    """How the formula moves with each factor, for each unit of the factor."""
    known = cost_per_correct.partials(run.cpm_usd, run.groups.r, run.groups)
    return {
        name: run.make.money(
            None if known is None else Fraction(getattr(known, name)), AMORTIZED, per=f"{_PER}/{name}", why=_UNKNOWN
        )
        for name in ("alpha", "cpm", "r", "one_plus_rho")
    }


def price_lines(run: PricedRun, drawn: Resamples | None) -> dict[str, PriceLine]:
    """Each of `correct.LINES`: price of a token, cost per accepted and per correct trajectory, and the formula."""
    measured = cost_per_correct.measured(run.cost, run.groups)
    return {line: _line(run, line, measured[line], drawn) for line in cost_per_correct.LINES}


def _line(run: PricedRun, line: str, per_accepted: Fraction | None, drawn: Resamples | None) -> PriceLine:
    make, cost, groups, view = run.make, run.cost, run.groups, _VIEW_OF_LINE[line]
    basis = "measured" if view == AMORTIZED else run.borrow.basis
    usd = cost.by_line[line]
    per_correct = per_accepted / groups.ppv if per_accepted is not None and groups.ppv else None
    accepted_interval, correct_interval = cost_per_correct.measured_interval(cost, run.tokens, groups, drawn, line)
    pi = cost.pi(line)
    no_interval = cost.no_interval(line) or bootstrap.TOO_FEW
    why = _why_no_line(line, usd, groups)
    return PriceLine(
        token_cost=make.money(
            None if usd is None else usd * _MILLION, view, per="million tokens", basis=basis, why=why
        ),
        pi=make.part(pi, unit="ratio", why=why or "not enough data: serving's own price of a token is not known"),
        measured=make.money(
            per_accepted,
            view,
            per="accepted trajectory",
            basis=basis,
            why=why,
            interval=accepted_interval if per_accepted is not None else None,
            no_interval=no_interval,
        ),
        per_correct=make.money(
            per_correct,
            view,
            per="correct trajectory",
            basis=basis,
            why=why or _NOT_AUDITED,
            interval=correct_interval if per_correct is not None else None,
            no_interval=no_interval,
        ),
        formula=_formula(run, line, drawn, why)[0],
    )


def c3(run: PricedRun, drawn: Resamples | None) -> tuple[Figure, Figure]:
    """CPM * R * (1 + pi * rho) / alpha at the prices rollout tokens really had, and the same over PPV."""
    return _formula(run, "blended", drawn, None)


def _formula(run: PricedRun, line: str, drawn: Resamples | None, why: str | None) -> tuple[Figure, Figure]:
    pi, ppv, view = run.cost.pi(line), run.groups.ppv, _VIEW_OF_LINE[line]
    usd = cost_per_correct.formula(run.cpm_usd, run.groups.r, run.groups, pi)
    interval, over_ppv = cost_per_correct.formula_interval(run.cpm_usd, run.cost, drawn, line)
    no_interval = cost_per_correct.no_formula_interval(run.cost, line) or bootstrap.TOO_FEW
    why = _BELOW if pi is not None and pi < 0 else why or _UNKNOWN
    return (
        run.make.money(
            None if usd is None else Fraction(usd),
            view,
            per=_PER,
            basis="price book",
            why=why,
            interval=None if usd is None else interval,
            no_interval=no_interval,
        ),
        run.make.money(
            Fraction(usd) / ppv if usd is not None and ppv else None,
            view,
            per="million correct answer tokens",
            basis="price book",
            why=why if usd is None else _NOT_AUDITED,
            interval=over_ppv if usd is not None and ppv else None,
            no_interval=no_interval,
        ),
    )


def _why_no_line(line: str, usd: Fraction | None, groups: Groups) -> str | None:
    if usd is None:
        where = {"dedicated": "dedicated", "blended": "any"}.get(line, "borrowed")
        return f"not enough data: no useful token was made on {where} devices"
    return None if groups.accepted else "not enough data: nothing was accepted yet"
