"""The frontier of one run as tables: elasticities, dollars, thresholds, and where the next dollar belongs."""

from __future__ import annotations

from fractions import Fraction

from rose.pricing import formulas
from rose.pricing.answers import elasticity
from rose.pricing.answers import frontier as compute
from rose.pricing.answers.elasticity import Elasticity
from rose.pricing.answers.frontier import Answer, Slack, Spend
from rose.pricing.figures import AMORTIZED, BLENDED, Figure
from rose.pricing.query import rows
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap
from rose.pricing.table import Paragraph, Row, Section, Table, columns, values

#: What the next one is priced by, in the order in which they are shown.
TWO_LINES, THREE_LINES, FREE = "two price lines", "three price lines", "slack that costs nothing"
#: Rows of the elasticities.
N, ETA_N, INDEPENDENT = (
    "rollouts for each answer (n)",
    "elasticity of alpha in rollouts (eta_n)",
    "the same, if tries were independent",
)
ETA_T, LEFT = "elasticity of alpha in training (eta_T)", "(eta_n - 1) / eta_T"
_SPEND = {
    "inference_usd": "inference: time spent serving (D_I)",
    "training_usd": "training, rollouts at the dedicated price (D_T)",
    "training_with_borrowing_usd": "training, as it was paid for (D_T')",
    "rollout_share": "rollouts' share of training (psi)",
    "borrowed_share": "borrowed share of rollout tokens (phi)",
    "cost_ratio": "borrowed over dedicated price of a token (c_O / c_D)",
    "threshold": "threshold with two price lines (D_I / D_T)",
    "kappa3": "threshold with three (kappa3)",
}


def frontier(run: PricedRun) -> Section:
    """Return where the next dollar, or slack second, lowers the cost of a correct answer."""
    eta_n = elasticity.of_rollouts(run.groups)
    eta_t = elasticity.of_training(elasticity.steps(run.groups, rows(run.connection, "answers/step_training")))
    dollars = compute.spend(run.allocation, run.cost)
    yields = compute.slack(run.allocation, run.tokens, run.groups)
    independent = _independent(run)
    n = None if run.groups.rho is None else 1 + run.groups.rho
    return Section(
        {
            "answers": Table(
                title="Where the next one belongs",
                view="relative fall in cost per correct",
                stamp=run.stamp,
                columns=columns(
                    "priced by",
                    "per",
                    "side",
                    "inference",
                    "training",
                    "difference",
                    "answer",
                    text=("per", "side", "answer"),
                ),
                rows=_answers(run, eta_n, eta_t, dollars, yields),
            ),
            "rollouts": Paragraph(_rollouts(eta_n, independent)),
            "elasticities": Table(
                title="How alpha grows",
                view="elasticities",
                stamp=run.stamp,
                columns=columns("what", "value", "rests on", text=("rests on",)),
                rows=(
                    (N, run.make.part(n, unit="ratio", why="not enough data: no verdict yet"), ""),
                    (ETA_N, _elasticity(run, eta_n), eta_n.says),
                    (
                        INDEPENDENT,
                        run.make.measure(
                            independent, why="not enough data: all or none of the trajectories were accepted"
                        ),
                        "",
                    ),
                    (ETA_T, _elasticity(run, eta_t), eta_t.says),
                    (LEFT, _left(run, eta_n, eta_t, dollars), ""),
                ),
            ),
            "spend": values(
                "What was spent on either side",
                {words: _spend(run, dollars, name) for name, words in _SPEND.items()},
                run.stamp,
                "amortized; D_T' marginal for borrowed",
            ),
        }
    )


def _elasticity(run: PricedRun, eta: Elasticity) -> Figure:
    return run.make.measure(eta.value, interval=eta.interval, why=eta.says, no_interval=bootstrap.TOO_FEW)


def _independent(run: PricedRun) -> float | None:
    rho, rate = run.groups.rho, run.groups.accept_rate
    if rho is None or rate is None or not 0 < rate < 1:
        return None
    return formulas.best_of_n_elasticity(float(rate), float(1 + rho))


def _left(run: PricedRun, eta_n: Elasticity, eta_t: Elasticity, dollars: Spend | str) -> Figure:
    if isinstance(dollars, str):
        return run.make.measure(None, why=dollars)
    known = eta_n.value is not None and eta_t.value is not None
    value = compute.left(eta_n, eta_t, dollars, float(1 + (run.groups.rho or 0)))
    return run.make.measure(
        value,
        why="does not apply: training did not raise alpha" if known else "not enough data: an elasticity is not known",
    )


def _spend(run: PricedRun, dollars: Spend | str, name: str) -> Figure:
    if isinstance(dollars, str):
        return run.make.measure(None, why=dollars)
    value = getattr(dollars, name)
    if name.endswith("_usd"):
        return run.make.money(Fraction(value), BLENDED if "borrowing" in name else AMORTIZED)
    return run.make.measure(float(value), "share" if name.endswith("_share") else "ratio")


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
) -> tuple[Row, ...]:
    answers: dict[str, Answer | str] = {TWO_LINES: str(dollars), THREE_LINES: str(dollars), FREE: str(yields)}
    if not isinstance(dollars, str):
        inference = float(dollars.inference_usd)
        answers[TWO_LINES] = compute.next_dollar(eta_n, eta_t, inference, float(dollars.training_usd))
        answers[THREE_LINES] = compute.next_dollar(eta_n, eta_t, inference, dollars.training_with_borrowing_usd)
    if not isinstance(yields, str):
        answers[FREE] = compute.next_second(eta_n, eta_t, float(1 + (run.groups.rho or 0)), yields)
    return tuple(
        (name, "slack second" if name == FREE else "dollar", *_answer(run, answer)) for name, answer in answers.items()
    )


def _answer(run: PricedRun, answer: Answer | str) -> Row:
    """Its side, the relative falls in cost per correct on each side and their difference, and its sentence."""
    if isinstance(answer, str):
        none = run.make.measure(None, why=answer)
        return compute.UNKNOWN, none, none, none, f"{answer[0].upper()}{answer[1:]}."
    inference, training = answer.gain_inference, answer.gain_training
    apart = None if inference is None or training is None else inference - training
    return (
        answer.side,
        run.make.measure(inference, why="not enough data: its elasticity is not known"),
        run.make.measure(training, why="not enough data: its elasticity is not known"),
        run.make.measure(apart, interval=answer.interval, why="not enough data: an elasticity is not known"),
        answer.says,
    )
