"""Verifiers side by side as a document: scores, rates, prices, and which makes a correct answer cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from rose.pricing.answers import cost_per_correct, probes, verifiers
from rose.pricing.answers.probes import Probe
from rose.pricing.answers.verifiers import Verifier
from rose.pricing.document import RunFacts, to_json
from rose.pricing.figures import BLENDED, BookFacts, Figure, Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBookError
from rose.pricing.query import rows
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap

_NO_TRAJECTORY = "not enough data: the run has no judged trajectory to take the cost of an answer from"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationRow:
    """Probes reported within [low, high): the mean report beside the share that was correct."""

    low: float
    high: float
    probes: Figure
    reported: Figure
    correct: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierRow:
    """One verifier. Scores and rates are on the shared probes; `saw` counts all that it judged."""

    name: str
    saw: Figure
    probes: Figure
    brier: Figure
    logarithmic: Figure
    reliability: Figure
    resolution: Figure
    uncertainty: Figure
    within_bins: Figure
    accept_rate: Figure
    tpr: Figure
    fpr: Figure
    ppv: Figure
    price: Figure
    per_correct: Figure
    chance_cheapest: Figure
    calibration: tuple[CalibrationRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Procurement:
    """What `rose correct verifiers` shows: verifiers in the order of their Brier scores."""

    stamp: Stamp
    run: RunFacts
    price_book: BookFacts
    #: Where the probes are from.
    probes: str
    #: Probes that all verifiers judged.
    shared: Figure
    #: What the run paid for each judged trajectory, before its verdict.
    per_trajectory: Figure
    verifiers: tuple[VerifierRow, ...]
    cheapest: str | None
    in_words: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; amounts are whole nano-dollars."""
        return to_json(self)


def procurement(run: PricedRun, file: Path | None = None, threshold: float | None = None) -> Procurement:
    """The document on the probes of `file`, or on the run's verdicts whose truth is known.

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
    return Procurement(
        stamp=run.stamp,
        run=run.run,
        price_book=run.book_facts,
        probes=source,
        shared=run.make.number(compared.shared, "probes"),
        per_trajectory=run.make.money(trajectory_usd, BLENDED, per="judged trajectory", why=_NO_TRAJECTORY),
        verifiers=tuple(
            _row(run, verifier, source, _NO_TRAJECTORY if trajectory_usd is None else why.get(verifier.name), held)
            for verifier in compared.verifiers
        ),
        cheapest=compared.cheapest,
        in_words=compared.says,
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


def _row(run: PricedRun, verifier: Verifier, source: str, no_cost: str | None, held: str | None) -> VerifierRow:
    """`held` says why what a trajectory cost has no interval, so that a correct answer has none either."""
    scores = verifier.scores

    def number(value: float | None, why: str | None = None) -> Figure:
        return run.number(value, basis=source, why=why)

    def rate(value: Fraction | None, why: str) -> Figure:
        return run.number(None if value is None else float(value), "share", basis=source, why=why)

    usd = verifier.usd_per_correct
    return VerifierRow(
        name=verifier.name,
        saw=run.make.number(verifier.saw, "probes"),
        probes=run.make.number(scores.probes, "probes"),
        brier=number(scores.brier),
        logarithmic=number(
            scores.logarithmic,
            f"infinite: {scores.certain_and_wrong} reported as certain turned out otherwise",
        ),
        reliability=number(scores.reliability),
        resolution=number(scores.resolution),
        uncertainty=number(scores.uncertainty),
        within_bins=number(scores.within_bins),
        accept_rate=rate(scores.accept_rate, ""),
        tpr=rate(scores.tpr, "not enough data: no probe was correct"),
        fpr=rate(scores.fpr, "not enough data: no probe was wrong"),
        ppv=rate(scores.ppv, "not enough data: it accepted nothing"),
        price=run.make.money(verifier.usd_per_verdict, BLENDED, per="verdict", basis="price book", why=no_cost),
        per_correct=run.make.money(
            usd,
            BLENDED,
            per="correct answer",
            why=no_cost or "not enough data: it accepted nothing that was correct",
            interval=verifier.interval if usd is not None and not held else None,
            no_interval=held or bootstrap.TOO_FEW,
        ),
        chance_cheapest=run.number(
            verifier.chance_cheapest, "share", basis=source, why="does not apply: they cannot be compared"
        ),
        calibration=tuple(
            CalibrationRow(
                low=of_bin.low,
                high=of_bin.high,
                probes=run.make.number(of_bin.probes, "probes"),
                reported=rate(Fraction(of_bin.reported), ""),
                correct=rate(Fraction(of_bin.correct), ""),
            )
            for of_bin in scores.calibration
        ),
    )
