"""Says where the next dollar, or the next second of free device time (slack), lowers the cost of a correct answer more:
in inference or in training (docs/pricing.md). Elasticities are measured on the groups that training used."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from rose.pricing import formulas
from rose.pricing.answers import elasticity
from rose.pricing.answers.elasticity import Elasticity
from rose.pricing.charges.allocation import Allocation
from rose.pricing.figures import AMORTIZED, BLENDED, Figure
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_S
from rose.pricing.query import rows
from rose.pricing.run.cost_per_correct import Groups, TokenCost
from rose.pricing.run.priced import PricedRun
from rose.pricing.run.tokens import Tokens
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Interval, interval
from rose.pricing.stats.verdict import exceeds
from rose.pricing.table import Paragraph, Row, Section, Table, report_table, values

Side = Literal["inference", "training", "neither", "not clear"]
UNKNOWN: Side = "not clear"

TWO_LINES, THREE_LINES, FREE = "two price lines", "three price lines", "slack that costs nothing"
N, ETA_N = "rollouts for each answer", "more groups solved by 1% more rollouts, in percent"
INDEPENDENT = "more groups solved if tries were independent, in percent"
ETA_T, LEFT = "more groups solved by 1% more training, in percent", "threshold of inference over training"
_UNKNOWN_ETA = "not enough data: an elasticity is not known"
_ALL_ALIKE = "not enough data: all or none of the trajectories were accepted"
_SPEND = {
    "inference_usd": "inference: time spent serving",
    "training_usd": "training, rollouts at the dedicated price",
    "training_with_borrowing_usd": "training, as paid",
    "rollout_share": "rollouts' share of training",
    "borrowed_share": "borrowed share of rollout tokens",
    "cost_ratio": "borrowed over dedicated price of a token",
    "threshold": "threshold with two price lines",
    "kappa3": "threshold with three",
}
_TRAINING_BUCKETS = ("train", "sync", "activation", "transfer", "energy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    inference_usd: Fraction
    rollouts_usd: Fraction
    other_training_usd: Fraction
    borrowed_share: Fraction
    cost_ratio: Fraction  #: c_O / c_D.

    @property
    def training_usd(self) -> Fraction:  # D_T
        return self.rollouts_usd + self.other_training_usd

    @property
    def rollout_share(self) -> Fraction:  # psi
        return self.rollouts_usd / self.training_usd

    @property
    def training_with_borrowing_usd(self) -> float:  # D_T'
        terms = self.training_usd, self.rollout_share, self.borrowed_share, self.cost_ratio
        return formulas.training_spend_with_borrowing(*map(float, terms))

    @property
    def threshold(self) -> float:
        return float(self.inference_usd / self.training_usd)

    @property
    def kappa3(self) -> float:  # D_I / D_T'
        return float(self.inference_usd) / self.training_with_borrowing_usd


@dataclass(frozen=True, slots=True)
class Answer:
    side: Side
    gain_inference: float | None
    gain_training: float | None
    interval: Interval | None
    says: str


def spend(allocation: Allocation, cost: TokenCost, shares_fleet: bool = False) -> Spend | str:
    """Return what inference and training cost, or why it is unknown. `shares_fleet`: a fleet's run pays for serving."""
    dedicated, opportunistic = cost.by_line["dedicated"], cost.by_line["opportunistic"]
    inference = Fraction(allocation.in_pools("serving").amortized_nano_usd()["serving"], NANO_USD_PER_USD)
    if not inference:
        if shares_fleet:
            return "not enough data: serving is on the bill of the fleet's run, which this run shares"
        return "not enough data: no serving device spent time on serving"
    if not dedicated:
        return "not enough data: no useful token was made on dedicated devices, and training is valued at their price"
    if opportunistic is not None and opportunistic < 0:
        return "does not apply: borrowing lowered the bill, so a borrowed token has no price"
    bought = allocation.in_pools("rollout", "train").amortized_nano_usd()
    return Spend(
        inference_usd=inference,
        rollouts_usd=dedicated * cost.useful,
        other_training_usd=Fraction(sum(bought[bucket] for bucket in _TRAINING_BUCKETS), NANO_USD_PER_USD),
        borrowed_share=cost.borrowed_share or Fraction(0),
        cost_ratio=(opportunistic or Fraction(0)) / dedicated,
    )


def slack(
    allocation: Allocation, tokens: Mapping[str, Tokens], groups: Groups, updates: int = 0
) -> tuple[float, float] | str:
    """Return by which shares one slack second increases (rollouts, training), or a text that names missing data."""
    borrowed_ns = allocation.in_pools("serving").measured_ns()["rollout"]
    training_ns = allocation.measured_ns()["train"]
    generated = sum(made.generated for made in tokens.values())
    if not borrowed_ns or not tokens["borrowed"].generated:
        return "not enough data: no rollout ran on a serving device"
    if not training_ns and updates:
        return f"not enough data: {updates:,} updates ran outside the fleet, and their cost is not known"
    if not training_ns or not groups.judged_groups:
        return "not enough data: " + ("no update was made" if not training_ns else "no group was judged yet")
    # A trajectory that moved counts on each device by its tokens there.
    rollouts = groups.trajectories * Fraction(tokens["borrowed"].generated, generated)
    return float(rollouts * NS_PER_S / (borrowed_ns * groups.judged_groups_trajectories)), NS_PER_S / training_ns


def left(eta_n: Elasticity, eta_t: Elasticity) -> float | None:
    """Return (eta_n - 1) / eta_T. Inference is the better use of a dollar if the result is above inference dollars /
    training dollars. Return None if an elasticity is unknown, or if training does not raise alpha."""
    if eta_n.value is None or eta_t.value is None or eta_t.value <= 0:
        return None
    return (eta_n.value - 1) / eta_t.value


def next_step(eta_n: Elasticity, eta_t: Elasticity, growth: tuple[float, float], what: str) -> Answer:
    """Return where to spend the next dollar or slack second (`what`). `growth` has the shares by which rollouts and
    training then increase. A dollar for inference also adds to the cost of answers; a slack second does not."""
    inference, training = _gain(eta_n, growth[0], own_cost=1 if what == "dollar" else 0), _gain(eta_t, growth[1])
    apart: Interval | None = None
    if inference.draws is not None and training.draws is not None:
        apart = interval(inference.draws - training.draws, min(inference.units, training.units))
    to_inference, lowers, training_lowers = (
        None if one is None else exceeds(one.low, one.high) for one in (apart, inference.interval, training.interval)
    )
    side: Side = UNKNOWN
    if lowers is False and training_lowers is False:
        side = "neither"
    elif to_inference and lowers:
        side = "inference"
    elif to_inference is False and training_lowers:
        side = "training"
    why = "chance alone could explain the difference"
    if apart is None:
        why = "an elasticity is not known, or has no interval"
    elif to_inference is not None:
        why = "the better side may not lower it at all"
    return Answer(side, inference.value, training.value, apart, _says(side, lowers, training_lowers, what, why))


def _gain(eta: Elasticity, rate: float, own_cost: float = 0) -> Elasticity:
    """Return the share by which the cost falls if inference, or training, grows by the share `rate`. The additional
    answers lower the cost by eta * rate. Paying for the growth raises the cost by own_cost * rate."""
    if eta.value is None or eta.draws is None:
        return eta
    draws, value = (eta.draws - own_cost) * rate, bootstrap.rounded((eta.value - own_cost) * rate)
    return replace(eta, value=value, draws=draws, interval=interval(draws, eta.units))


def _says(side: Side, inference: bool | None, training: bool | None, what: str, why: str) -> str:
    verbs, price = {True: "lowers", False: "raises"}, "at its price" if what == "dollar" else "in free slack"
    first = {
        "inference": f"The next {what} lowers cost per correct faster on inference than on training.",
        "training": f"The next {what} lowers cost per correct faster on training than on inference.",
        "neither": f"The next {what} lowers cost per correct on neither side.",
        UNKNOWN: f"Where the next {what} lowers cost per correct faster is not clear: {why}.",
    }[side]
    known = [
        f"{subject} {price} {verbs[lowers]} it"
        for subject, lowers in (("one more rollout", inference), ("more training", training))
        if lowers is not None
    ]
    rest = " and ".join(known)
    return f"{first} {rest[0].upper()}{rest[1:]}." if rest else first


def frontier(run: PricedRun) -> Section:
    eta_n = elasticity.of_rollouts(run.groups)
    trained = rows(run.connection, "answers/step_training")
    eta_t = elasticity.of_training(elasticity.steps(run.groups, trained))
    dollars = spend(run.allocation, run.cost, run.charged.fleet is not None)
    yields = slack(run.allocation, run.tokens, run.groups, sum(bool(row["train_ns"]) for row in trained))
    rho, rate, independent = run.groups.rho, run.groups.accept_rate, None
    if rho is not None and rate is not None and 0 < rate < 1:
        independent = formulas.best_of_n_elasticity(float(rate), float(1 + rho))
    n, threshold, why = None if rho is None else 1 + rho, left(eta_n, eta_t), _UNKNOWN_ETA
    if isinstance(dollars, str):
        threshold, why = None, dollars
    elif eta_n.value is not None and eta_t.value is not None:
        why = "does not apply: training did not raise alpha"
    parts: dict[str, Table | Paragraph] = {
        "answers": report_table(
            run.stamp,
            "Where to spend next",
            "priced by | per | side | inference | training | difference | answer",
            _answers(run, eta_n, eta_t, dollars, yields),
            view="relative fall in cost per correct",
            text=("per", "side", "answer"),
        ),
        "rollouts": Paragraph(_rollouts(eta_n, independent)),
        "elasticities": report_table(
            run.stamp,
            "How the share of solved groups grows",
            "what | value | rests on",
            (
                (N, run.make.part(n, unit="ratio", why="not enough data: no verdict yet"), ""),
                (ETA_N, _elasticity(run, eta_n), eta_n.says),
                (INDEPENDENT, run.make.measure(independent, why=_ALL_ALIKE), ""),
                (ETA_T, _elasticity(run, eta_t), eta_t.says),
                (LEFT, run.make.measure(threshold, why=why), ""),
            ),
            view="elasticities",
            text=("rests on",),
        ),
        "spend": values(
            "Spending on each side",
            {words: _spend(run, dollars, name) for name, words in _SPEND.items()},
            run.stamp,
            "amortized; training as it was paid for is marginal for borrowed",
        ),
    }
    return Section(parts)


def _elasticity(run: PricedRun, eta: Elasticity) -> Figure:
    return run.make.measure(eta.value, interval=eta.interval, why=eta.says, no_interval=bootstrap.TOO_FEW)


def _spend(run: PricedRun, dollars: Spend | str, name: str) -> Figure:
    if isinstance(dollars, str):
        return run.make.measure(None, why=dollars)
    value = getattr(dollars, name)
    if name.endswith("_usd"):
        return run.make.money(Fraction(value), BLENDED if "borrowing" in name else AMORTIZED)
    return run.make.measure(float(value), "share" if name.endswith("_share") else "ratio")


def _rollouts(eta_n: Elasticity, independent: float | None) -> str:
    text = "What more rollouts do to cost per correct is not known: there is not enough data."
    if eta_n.value is not None and eta_n.interval is not None:
        pays = exceeds(eta_n.interval.low, eta_n.interval.high, 1)
        does = {True: "lower", False: "raise", None: "may raise or lower"}[pays]
        text = (
            f"At their price, more rollouts for each answer {does} cost per correct: 1% more of them bring "
            f"{eta_n.value:.2g}% more accepted answers, and they pay off only above 1%."
        )
    if independent is not None:
        text += f" Independent tries always stay below 1% (here they would bring {independent:.2g}%)."
    return text


def _answers(
    run: PricedRun, eta_n: Elasticity, eta_t: Elasticity, dollars: Spend | str, yields: tuple[float, float] | str
) -> tuple[Row, ...]:
    answers: dict[str, Answer | str] = {TWO_LINES: str(dollars), THREE_LINES: str(dollars), FREE: str(yields)}
    if not isinstance(dollars, str):
        for lines, usd in ((TWO_LINES, dollars.training_usd), (THREE_LINES, dollars.training_with_borrowing_usd)):
            growth = 1 / float(dollars.inference_usd), 1 / float(usd)
            answers[lines] = next_step(eta_n, eta_t, growth, "dollar")
    if not isinstance(yields, str):
        answers[FREE] = next_step(eta_n, eta_t, yields, "slack second")
    return tuple(
        (name, "slack second" if name == FREE else "dollar", *_answer(run, answer)) for name, answer in answers.items()
    )


def _answer(run: PricedRun, answer: Answer | str) -> Row:
    if isinstance(answer, str):
        none = run.make.measure(None, why=answer)
        return UNKNOWN, none, none, none, f"{answer[0].upper()}{answer[1:]}."
    gains = answer.gain_inference, answer.gain_training
    apart = None if gains[0] is None or gains[1] is None else gains[0] - gains[1]
    return (
        answer.side,
        *(run.make.measure(gain, why="not enough data: its elasticity is not known") for gain in gains),
        run.make.measure(apart, interval=answer.interval, why=_UNKNOWN_ETA),
        answer.says,
    )
