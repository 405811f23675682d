"""The frontier of one run as a document: elasticities, dollars, thresholds, and where the next dollar belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rose.pricing import formulas
from rose.pricing.answers import elasticity, frontier
from rose.pricing.answers.elasticity import Elasticity
from rose.pricing.answers.frontier import Answer, Slack, Spend
from rose.pricing.document import RunFacts, to_json
from rose.pricing.figures import AMORTIZED, BLENDED, BookFacts, Figure, Stamp
from rose.pricing.query import rows
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap

#: The questions, in the order they are shown.
TWO_LINES, THREE_LINES, FREE = "two price lines", "three price lines", "slack that costs nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerRow:
    """An answer: `inference`, `training`, `neither` or `not enough data to tell`, in a word and in a sentence.

    The gains are relative falls in cost per correct, for each dollar more or for each slack second.
    """

    side: str
    says: str
    gain_inference: Figure
    gain_training: Figure
    #: Inference less training.
    difference: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """What `rose correct frontier` shows."""

    stamp: Stamp
    run: RunFacts
    price_book: BookFacts
    #: n, eta_n, eta_t, independent (best of n by the accept rate), left.
    elasticities: Mapping[str, Figure]
    #: What eta_n and eta_t were worked out from, or what is missing.
    rests_on: Mapping[str, str]
    #: inference, training, training_with_borrowing (dollars), psi, phi, cost_ratio, threshold, kappa3.
    spend: Mapping[str, Figure]
    #: What more rollouts do to cost per correct, in words.
    rollouts: str
    answers: Mapping[str, AnswerRow]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; amounts are whole nano-dollars."""
        return to_json(self)


def outlook(run: PricedRun) -> Outlook:
    """The document of a run."""
    eta_n = elasticity.of_rollouts(run.groups)
    eta_t = elasticity.of_training(elasticity.steps(run.groups, rows(run.connection, "answers/step_training")))
    dollars = frontier.spend(run.allocation, run.cost)
    yields = frontier.slack(run.allocation, run.tokens, run.groups)
    independent = _independent(run)
    return Outlook(
        stamp=run.stamp,
        run=run.run,
        price_book=run.book_facts,
        elasticities={
            "n": run.make.part(
                None if run.groups.rho is None else 1 + run.groups.rho,
                unit="ratio",
                why="not enough data: no verdict yet",
            ),
            "eta_n": run.number(eta_n.value, interval=eta_n.interval, why=eta_n.says, no_interval=bootstrap.TOO_FEW),
            "eta_t": run.number(eta_t.value, interval=eta_t.interval, why=eta_t.says, no_interval=bootstrap.TOO_FEW),
            "independent": run.number(
                independent, why="not enough data: all or none of the trajectories were accepted"
            ),
            "left": _left(run, eta_n, eta_t, dollars),
        },
        rests_on={"eta_n": eta_n.says, "eta_t": eta_t.says},
        spend=_spend(run, dollars),
        rollouts=_rollouts(eta_n, independent),
        answers=_answers(run, eta_n, eta_t, dollars, yields),
    )


def _independent(run: PricedRun) -> float | None:
    rho, rate = run.groups.rho, run.groups.accept_rate
    if rho is None or rate is None or not 0 < rate < 1:
        return None
    return formulas.best_of_n_elasticity(float(rate), float(1 + rho))


def _left(run: PricedRun, eta_n: Elasticity, eta_t: Elasticity, dollars: Spend | str) -> Figure:
    if isinstance(dollars, str):
        return run.number(None, why=dollars)
    known = eta_n.value is not None and eta_t.value is not None
    value = frontier.left(eta_n, eta_t, dollars, float(1 + (run.groups.rho or 0)))
    return run.number(
        value,
        why="does not apply: training did not raise alpha" if known else "not enough data: an elasticity is not known",
    )


def _spend(run: PricedRun, dollars: Spend | str) -> dict[str, Figure]:
    names = ("inference", "training", "training_with_borrowing", "psi", "phi", "cost_ratio", "threshold", "kappa3")
    if isinstance(dollars, str):
        return {name: run.number(None, why=dollars) for name in names}
    return {
        "inference": run.make.money(dollars.inference_usd, AMORTIZED),
        "training": run.make.money(dollars.training_usd, AMORTIZED),
        "training_with_borrowing": run.make.money(Fraction(dollars.training_with_borrowing_usd), BLENDED),
        "psi": run.make.part(dollars.rollout_share),
        "phi": run.make.part(dollars.borrowed_share),
        "cost_ratio": run.make.part(dollars.cost_ratio, unit="ratio"),
        "threshold": run.number(dollars.threshold),
        "kappa3": run.number(dollars.kappa3),
    }


def _rollouts(eta_n: Elasticity, independent: float | None) -> str:
    """Whether more rollouts for each answer lower or raise what a correct one costs."""
    if eta_n.value is None or eta_n.interval is None:
        text = "What more rollouts do to cost per correct: not enough data to tell."
    else:
        low, high = eta_n.interval.low, eta_n.interval.high
        raises, lowers = high is not None and high < 1, low > 1
        does = "raise" if raises else "lower" if lowers else "may raise or lower"
        text = (
            f"More rollouts for each answer {does} cost per correct: 1% more of them bring {eta_n.value:.2g}% more "
            "accepted answers, and they pay only above 1%."
        )
    if independent is not None:
        text += f" Independent tries always stay below 1% (here they would bring {independent:.2g}%)."
    return text


def _answers(
    run: PricedRun, eta_n: Elasticity, eta_t: Elasticity, dollars: Spend | str, yields: Slack | str
) -> dict[str, AnswerRow]:
    made: dict[str, AnswerRow] = {}
    for name in (TWO_LINES, THREE_LINES):
        if isinstance(dollars, str):
            made[name] = _no_answer(run, dollars)
            continue
        training = float(dollars.training_usd) if name == TWO_LINES else dollars.training_with_borrowing_usd
        made[name] = _answer(run, frontier.next_dollar(eta_n, eta_t, float(dollars.inference_usd), training))
    if isinstance(yields, str):
        made[FREE] = _no_answer(run, yields)
    else:
        made[FREE] = _answer(run, frontier.next_second(eta_n, eta_t, float(1 + (run.groups.rho or 0)), yields))
    return made


def _answer(run: PricedRun, answer: Answer) -> AnswerRow:
    inference, training = answer.gain_inference, answer.gain_training
    unknown = "not enough data: its elasticity is not known"
    return AnswerRow(
        side=answer.side,
        says=answer.says,
        gain_inference=run.number(inference, why=unknown),
        gain_training=run.number(training, why=unknown),
        difference=run.number(
            None if inference is None or training is None else inference - training,
            interval=answer.interval,
            why="not enough data: an elasticity is not known",
        ),
    )


def _no_answer(run: PricedRun, why: str) -> AnswerRow:
    none = run.number(None, why=why)
    return AnswerRow(
        side=frontier.UNKNOWN,
        says=why[0].upper() + why[1:] + ".",
        gain_inference=none,
        gain_training=none,
        difference=none,
    )
