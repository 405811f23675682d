"""What a correct answer of one run cost, as tables: price lines, C3 with its interval, levers, and a breakdown."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from rose.pricing.answers import breakdown, cost_per_correct, levers
from rose.pricing.answers.breakdown import By
from rose.pricing.answers.levers import Lever, Move
from rose.pricing.document import PriceLine
from rose.pricing.figures import AMORTIZED, BLENDED, Figure
from rose.pricing.run import price_lines
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap
from rose.pricing.table import Paragraph, Row, Section, Table, columns

_PER = "million answer tokens"
#: The factors of C3 in words.
FACTORS = {
    "cpm": "price of a million serving tokens (CPM)",
    "r": "output tokens for each answer token (R)",
    "rho": "rollouts beyond the one that is kept (rho)",
    "alpha": "share of groups with an accepted answer (alpha)",
    "accept_rate": "share of single trajectories accepted",
    "phi": "share of rollout tokens made on borrowed devices (phi)",
    "ppv": "correct among audited accepted ones (PPV)",
}
C3, C3_PER_CORRECT = "C3, per million answer tokens", "C3 / PPV, per million correct ones"
TOKENS = "useful tokens"


def cost(run: PricedRun, by: By | None = None) -> Section:
    """Return the cost of a run's answers, with a breakdown if `by` names one."""
    drawn = cost_per_correct.resample(run.groups)
    lines, factors = price_lines.price_lines(run, drawn), price_lines.factors(run, drawn)
    c3, c3_per_correct = price_lines.c3(run, drawn)
    parts: dict[str, Table | Paragraph] = {
        "lines": _lines(run, lines),
        "c3": Table(
            title="C3 = CPM x R x (1 + pi x rho) / alpha, hypothetical: at list price",
            view=BLENDED,
            stamp=run.stamp,
            columns=columns("what", "value"),
            rows=tuple((words, factors[name]) for name, words in FACTORS.items()),
            footer=(
                (C3, c3),
                (C3_PER_CORRECT, c3_per_correct),
                (TOKENS, run.make.number(int(run.cost.useful), "tokens")),
            ),
        ),
    }
    at = levers.factors(run.cpm_usd, run.cost, run.tokens, run.groups)
    if at is None or not at.cost:
        parts["says"] = Paragraph("No lever can be weighed: a factor of C3 is not known, or C3 is nothing.")
    else:
        ranked = levers.levers(at, levers.standard_errors(drawn, run.groups, at))
        parts |= _levers(run, ranked)
        parts["says"] = Paragraph(levers.in_words(ranked))
    if by is not None:
        parts["parts"] = _parts(run, by, lines["blended"])
    return Section(parts)


def _lines(run: PricedRun, lines: Mapping[str, PriceLine]) -> Table:
    """The price lines, as measured and as the formula has them."""
    return Table(
        title="By what rollout tokens are priced at; the formula is hypothetical, at list price",
        view="view by line",
        stamp=run.stamp,
        columns=columns(
            "rollout tokens priced at",
            "a million of them",
            "pi",
            "per accepted",
            "per correct",
            "formula",
            "view",
            text=("view",),
        ),
        rows=tuple(
            (name, line.token_cost, line.pi, line.measured, line.per_correct, line.formula, line.measured.view)
            for name, line in lines.items()
        ),
    )


def _levers(run: PricedRun, ranked: tuple[Lever, ...]) -> dict[str, Table | Paragraph]:
    """What each factor moved alone would save, the one that saves most first, and how well each factor is known."""
    saves, errors = zip(*(_lever(run, lever) for lever in ranked), strict=True)
    return {
        "levers": Table(
            title="Which lever moves it most, dollars per million answer tokens",
            view=BLENDED,
            stamp=run.stamp,
            columns=columns("lever", "value", "elasticity", "a tenth better", "saves"),
            rows=saves,
            notes=("Each moves alone. With fewer rollouts alpha falls too: the frontier weighs that.",),
        ),
        "errors": Table(
            title="The same levers, by one standard error of each",
            view=BLENDED,
            stamp=run.stamp,
            columns=columns("lever", "derivative", "standard error", "moved by it", "saves then"),
            rows=errors,
        ),
    }


def _lever(run: PricedRun, lever: Lever) -> tuple[Row, Row]:
    unit = "share" if lever.name in ("alpha", "phi", "waste") else "ratio"
    no_error = "does not apply: a price" if lever.name == "cpm" else "none: it did not vary between groups"

    def value(amount: float | None, why: str | None = None) -> Figure:
        if lever.name != "cpm":
            return run.make.measure(amount, unit, why=why)
        usd = None if amount is None else Fraction(amount)
        return run.make.money(usd, AMORTIZED, per="million tokens", basis="price book", why=why)

    def saves(move: Move | None) -> Figure:
        usd = None if move is None else Fraction(bootstrap.rounded(move.saves))
        return run.make.money(usd, BLENDED, per=_PER, basis="price book", why=no_error)

    words = levers.WORDS[lever.name]
    derivative = run.make.money(Fraction(lever.derivative), BLENDED, per=f"{_PER}/{lever.name}", basis="price book")
    moved = value(None if lever.error is None else lever.error.to, no_error)
    return (
        (
            words,
            value(lever.value),
            run.make.measure(bootstrap.rounded(lever.elasticity)),
            value(lever.tenth.to),
            saves(lever.tenth),
        ),
        (words, derivative, value(lever.standard_error, no_error), moved, saves(lever.error)),
    )


def _parts(run: PricedRun, by: By, whole: PriceLine) -> Table:
    """What the run is divided into; dollars and accepted trajectories sum to the run's."""
    parts = breakdown.by(run.connection, run.run.run_id, by, run.cost)
    return Table(
        title=f"By {by}",
        view=BLENDED,
        stamp=run.stamp,
        columns=columns(by, "cost", "accepted", "per accepted"),
        rows=tuple(
            (
                part.key,
                run.make.amount(part.cost_nano_usd, BLENDED),
                run.make.number(part.accepted, "trajectories"),
                run.make.money(
                    part.usd_per_accepted,
                    BLENDED,
                    per="accepted trajectory",
                    why="does not apply: belongs to no row"
                    if part.key == breakdown.UNALLOCATED
                    else "not enough data: nothing was accepted",
                    interval=part.interval if part.usd_per_accepted is not None else None,
                    no_interval=run.cost.no_interval("blended") or bootstrap.TOO_FEW,
                ),
            )
            for part in parts
        ),
        footer=(
            (
                "run",
                run.make.amount(sum(part.cost_nano_usd for part in parts), BLENDED),
                run.make.number(sum(part.accepted for part in parts), "trajectories"),
                whole.measured,
            ),
        ),
    )
