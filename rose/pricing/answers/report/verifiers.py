"""Verifiers side by side as tables: scores, rates, prices, and which makes a correct answer cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from rose.pricing.answers import cost_per_correct, probes, verifiers
from rose.pricing.answers.probes import Probe
from rose.pricing.answers.verifiers import Verifier
from rose.pricing.figures import BLENDED, Figure
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBookError
from rose.pricing.query import rows
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap
from rose.pricing.table import Paragraph, Row, Section, Table, columns

_NO_TRAJECTORY = "not enough data: the run has no judged trajectory to take the cost of an answer from"
#: The row of what the run paid for each judged trajectory before its verdict.
JUDGED = "a judged trajectory, before its verdict"


def procurement(run: PricedRun, file: Path | None = None, threshold: float | None = None) -> Section:
    """Return the verifiers, best Brier score first, on probes of `file` or on verdicts of the run with known truth.

    `threshold` is what `rose.pricing.answers.probes.from_file` takes. Raises PricingError for probes that cannot be
    used, or where there are none.
    """
    if file is None and threshold is not None:
        raise PricingError("--threshold is for --probes: a verdict of the ledger was decided at a threshold of its own")
    source = "verdicts of the run whose truth is known" if file is None else f"file {file.name}"
    judgements = (
        probes.from_ledger(rows(run.connection, "answers/probes"))
        if file is None
        else probes.from_file(file, threshold)
    )
    if not judgements:
        raise PricingError(
            f"no verdict of run {run.run.run_id!r} has its truth recorded (`correct`), so no verifier can be scored: "
            "give probes with --probes"
            if file is None
            else f"probes {file} has no rows"
        )
    judged = run.groups.judged
    trajectory_usd = sum(run.cost.paid.values(), Fraction(0)) / judged if judged else None
    prices, why = _prices(run, judgements)
    held = run.cost.no_interval("blended") or (None if judged else _NO_TRAJECTORY)
    drawn = cost_per_correct.resample(run.groups)
    if held is None and (drawn is None or drawn.units < bootstrap.UNITS_MIN):
        held = bootstrap.TOO_FEW
    per_judged = (
        None if held or drawn is None else cost_per_correct.judged_draws(run.cost, run.tokens, run.groups, drawn)
    )
    compared = verifiers.compare(judgements, trajectory_usd, prices, per_judged)
    made = compared.verifiers
    missing = {v.name: _NO_TRAJECTORY if trajectory_usd is None else why.get(v.name) for v in made}
    before = run.make.money(trajectory_usd, BLENDED, per="judged trajectory", why=_NO_TRAJECTORY)
    return Section(
        {
            "says": Paragraph(compared.says),
            "cost": Table(
                title="What a correct answer costs with each",
                view=BLENDED,
                stamp=run.stamp,
                columns=columns("verifier", "accepts", "TPR", "FPR", "PPV", "a verdict", "per correct", "cheapest in"),
                rows=tuple(_cost(run, v, source, missing[v.name], held) for v in made),
                footer=((JUDGED, None, None, None, None, None, before, None),),
            ),
            "scores": Table(
                title="How well each reports probabilities: 0 is best for both",
                view=source,
                stamp=run.stamp,
                columns=columns(
                    "verifier",
                    "saw",
                    "scored on",
                    "Brier",
                    "logarithmic",
                    "reliability",
                    "resolution",
                    "uncertainty",
                    "within bins",
                ),
                rows=tuple(_scores(run, v, source) for v in made),
                notes=(
                    f"Brier = reliability - resolution + uncertainty + within bins. {compared.shared:,} probes were "
                    "judged by all.",
                ),
            ),
            "calibration": Table(
                title="Calibration",
                view="reported against what came true",
                stamp=run.stamp,
                columns=columns("verifier", "reported in", "probes", "mean report", "correct"),
                rows=tuple(
                    (
                        v.name,
                        f"{part.low:.1f} to {part.high:.1f}",
                        run.make.number(part.probes, "probes"),
                        run.make.measure(part.reported, "share", basis=source),
                        run.make.measure(part.correct, "share", basis=source),
                    )
                    for v in made
                    for part in v.scores.calibration
                ),
                grouped=True,
            ),
        }
    )


def _prices(run: PricedRun, judgements: Sequence[Probe]) -> tuple[dict[str, Fraction | None], dict[str, str]]:
    """Dollars per verdict when the run began, and why there is none for those the book has no price of."""
    prices: dict[str, Fraction | None] = {}
    why: dict[str, str] = {}
    for name in sorted({probe.verifier for probe in judgements}):
        try:
            prices[name] = Fraction(run.book.verifier_at(name, run.began_ns).usd_per_verdict)
        except PriceBookError as error:
            prices[name], why[name] = None, f"not known: {error}"
    return prices, why


def _scores(run: PricedRun, verifier: Verifier, source: str) -> Row:
    scores = verifier.scores
    infinite = f"infinite: {scores.certain_and_wrong} reported as certain turned out otherwise"
    return (
        verifier.name,
        run.make.number(verifier.saw, "probes"),
        run.make.number(scores.probes, "probes"),
        run.make.measure(scores.brier, basis=source),
        run.make.measure(scores.logarithmic, basis=source, why=infinite),
        *(
            run.make.measure(value, basis=source)
            for value in (scores.reliability, scores.resolution, scores.uncertainty, scores.within_bins)
        ),
    )


def _cost(run: PricedRun, verifier: Verifier, source: str, no_cost: str | None, held: str | None) -> Row:
    """`held` says why what a trajectory cost has no interval, so that a correct answer has none either."""
    scores, usd = verifier.scores, verifier.usd_per_correct

    def rate(value: Fraction | None, why: str) -> Figure:
        return run.make.measure(None if value is None else float(value), "share", basis=source, why=why)

    return (
        verifier.name,
        rate(scores.accept_rate, ""),
        rate(scores.tpr, "not enough data: no probe was correct"),
        rate(scores.fpr, "not enough data: no probe was wrong"),
        rate(scores.ppv, "not enough data: it accepted nothing"),
        run.make.money(verifier.usd_per_verdict, BLENDED, per="verdict", basis="price book", why=no_cost),
        run.make.money(
            usd,
            BLENDED,
            per="correct answer",
            why=no_cost or "not enough data: it accepted nothing that was correct",
            interval=verifier.interval if usd is not None and not held else None,
            no_interval=held or bootstrap.TOO_FEW,
        ),
        run.make.measure(
            verifier.chance_cheapest, "share", basis=source, why="does not apply: they cannot be compared"
        ),
    )
