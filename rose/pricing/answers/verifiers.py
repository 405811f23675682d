"""Compares verifiers by how good their probabilities are, and by what a correct answer costs with each verifier. Two
strictly proper scores are shown (docs/pricing.md). The Brier score ranks the verifiers. The other score, the
logarithmic one, may be infinite."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import fsum, log
from pathlib import Path

import numpy as np

from rose.pricing.answers import probes
from rose.pricing.answers.probes import Probe
from rose.pricing.figures import BLENDED
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBookError
from rose.pricing.query import rows
from rose.pricing.run import cost_per_correct
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval, Ints
from rose.pricing.table import Paragraph, Row, Section, Table, report_table

PROBES_MIN = 30  #: Shared probes below which no verifier is called the cheapest.
_VERDICTS = "verdicts of the run whose truth is known"
_NOT_COMPARED = "does not apply: they cannot be compared"
_NO_TRUTH = "has its truth recorded (`correct`), so no verifier can be scored: give probes with --probes"
_NO_TRAJECTORY = "not enough data: the run has no judged trajectory to take the cost of an answer from"
JUDGED = "1,000 judged trajectories, before their verdicts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    probes: int
    brier: float
    logarithmic: float | None  #: None, infinite, where `certain_and_wrong` is not 0.
    certain_and_wrong: int  #: Probes that were reported as 0 or 1 and turned out otherwise.
    accepted: int
    correct: int
    accepted_correct: int

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Return the accepted share, TPR, FPR and PPV, each None if its denominator is 0."""
        pairs = (
            (self.accepted, self.probes),
            (self.accepted_correct, self.correct),
            (self.accepted - self.accepted_correct, self.probes - self.correct),
            (self.accepted_correct, self.accepted),
        )
        return tuple(part / whole if whole else None for part, whole in pairs)


@dataclass(frozen=True, slots=True)
class Verifier:
    name: str
    saw: int  #: Probes with this verifier's verdict; all verifiers saw `scores.probes` of them.
    scores: Scores
    usd_per_verdict: Fraction | None
    usd_per_correct: Fraction | None
    interval: Interval | None
    chance_cheapest: float | None  #: Share of draws in which it was the cheapest; None unless all costs are known.


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierComparison:
    verifiers: tuple[Verifier, ...]
    shared: int  #: Probes that every verifier saw. If there are any, only these are scored.
    says: str


def score(probes: Sequence[Probe]) -> Scores:
    size = len(probes)
    given = [probe.probability if probe.correct else 1 - probe.probability for probe in probes]
    wrong = sum(chance == 0 for chance in given)
    return Scores(
        probes=size,
        brier=fsum((1 - chance) ** 2 for chance in given) / size,
        logarithmic=None if wrong else fsum(-log(chance) for chance in given) / size + 0.0,
        certain_and_wrong=wrong,
        accepted=sum(probe.accepted for probe in probes),
        correct=sum(probe.correct for probe in probes),
        accepted_correct=sum(probe.accepted and probe.correct for probe in probes),
    )


def compare(
    probes: Iterable[Probe],
    usd_per_trajectory: Fraction | None,
    usd_per_verdict: Mapping[str, Fraction | None],
    trajectory_draws: Floats | None = None,
) -> VerifierComparison:
    """Return each verifier's scores, and what a correct answer costs with this verifier. `usd_per_trajectory` is the
    cost of a trajectory before its verdict. `trajectory_draws` are bootstrap draws of this cost."""
    by_verifier: dict[str, dict[str, Probe]] = defaultdict(dict)
    for probe in probes:
        by_verifier[probe.verifier][probe.probe] = probe
    shared = sorted(set.intersection(*map(set, by_verifier.values())))
    scored = {name: score([own[key] for key in shared or sorted(own)]) for name, own in sorted(by_verifier.items())}
    paid = {
        name: None if usd_per_trajectory is None or (usd := usd_per_verdict[name]) is None else usd_per_trajectory + usd
        for name in scored
    }
    draws, units = _draws(by_verifier, shared, paid) if shared else ({}, 0)
    if trajectory_draws is not None and draws:
        # (g + v) / alpha for another g, whose draws are those of blocks.
        wider = bootstrap.expanded(bootstrap.BLOCKS) / bootstrap.expanded(units)
        off = (trajectory_draws - float(usd_per_trajectory or 0)) * wider
        draws = {name: drawn * (1 + off / float(paid[name] or 1)) for name, drawn in draws.items()}
    chances = _chances(draws) if len(draws) == len(scored) > 1 else {}
    verifiers = []
    for name, scores in sorted(scored.items(), key=lambda item: (item[1].brier, item[0])):
        usd, right = paid[name], scores.accepted_correct
        per_correct = None if usd is None or not right else usd * scores.probes / right
        interval = bootstrap.interval(draws[name], units) if name in draws else None
        saw, chance = len(by_verifier[name]), chances.get(name)
        verifiers.append(Verifier(name, saw, scores, usd_per_verdict[name], per_correct, interval, chance))
    says = _cheapest(verifiers, len(shared))
    return VerifierComparison(verifiers=tuple(verifiers), shared=len(shared), says=says)


def _draws(
    by_verifier: Mapping[str, Mapping[str, Probe]], shared: Sequence[str], paid: Mapping[str, Fraction | None]
) -> tuple[dict[str, Floats], int]:
    names = sorted(by_verifier)
    # All probes of each group, then the correct probes that each verifier accepted.
    groups: dict[str, Ints] = defaultdict(lambda: np.zeros(1 + len(names), dtype=np.int64))
    for probe in shared:
        judged = [by_verifier[name][probe] for name in names]
        groups[judged[0].group] += [1, *(int(judgement.accepted and judgement.correct) for judgement in judged)]
    sums = bootstrap.sums(np.array(list(groups.values()), dtype=np.int64))
    if sums is None:
        return {}, len(groups)
    size, *right = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        costs = zip(names, right, strict=True)
        drawn = {name: float(usd) * size / count for name, count in costs if (usd := paid[name]) is not None}
    return drawn, len(groups)


def _chances(draws: Mapping[str, Floats]) -> dict[str, float]:
    """Return the share of draws in which each verifier is cheapest. If n verifiers tie in a draw, each gets 1 / n."""
    # Without a correct accepted answer in a draw a verifier has no cost there: it counts as the most expensive.
    costs = np.where(np.isfinite(costs_drawn := np.stack(list(draws.values()))), costs_drawn, np.inf)
    ties = (costs == costs.min(axis=0)) & np.isfinite(costs)
    shares = ties / np.maximum(ties.sum(axis=0), 1)
    return dict(zip(draws, (float(share) for share in shares.mean(axis=1)), strict=True))


def _cheapest(verifiers: Sequence[Verifier], shared: int) -> str:
    if len(verifiers) == 1:
        return f"Only {verifiers[0].name} judged the probes."
    cannot = "The cheapest verifier is not yet clear"
    if not shared:
        return f"{cannot}: no probe was judged by all of them. Each has its own probes: do not compare scores."
    unpriced = [one.name for one in verifiers if one.usd_per_correct is None and one.scores.accepted_correct]
    if unpriced:
        return f"{cannot}: what an answer costs with {', '.join(unpriced)} is not known."
    if shared < PROBES_MIN:
        return f"{cannot}: {shared} probes were judged by all of them; need {PROBES_MIN}."
    best = max(verifiers, key=lambda verifier: verifier.chance_cheapest or 0)
    chance = best.chance_cheapest or 0.0
    if chance < bootstrap.CONFIDENCE:
        return f"{cannot}: {best.name} is the cheapest in {chance:.0%} of the draws; need 95%."
    return f"{best.name} makes a correct answer cheapest, in {chance:.1%} of the draws of {shared:,} probes."


def procurement(run: PricedRun, file: Path | None = None) -> Section:
    """Return the verifiers, ranked by Brier score on the probes of `file` or of the run. Raises PricingError."""
    if file is None:
        source, judgements = _VERDICTS, probes.from_ledger(rows(run.connection, "answers/probes"))
        missing = f"no verdict of run {run.run.run_id!r} {_NO_TRUTH}"
    else:
        source, judgements = f"file {file.name}", probes.from_file(file)
        missing = f"probes {file} has no rows"
    if not judgements:
        raise PricingError(missing)
    judged = run.groups.judged
    trajectory_usd = sum(run.cost.paid.values(), Fraction(0)) / judged if judged else None
    prices, why = _prices(run, judgements)
    no_interval = run.cost.no_interval("blended") or (None if judged else _NO_TRAJECTORY)
    drawn, per_judged = cost_per_correct.resample(run.groups), None
    if drawn is None or drawn.units < bootstrap.UNITS_MIN:
        no_interval = no_interval or bootstrap.TOO_FEW
    elif no_interval is None:
        per_judged = cost_per_correct.judged_draws(run.cost, run.tokens, run.groups, drawn)
    compared = compare(judgements, trajectory_usd, prices, per_judged)
    verifiers = compared.verifiers
    unpriced = {v.name: _NO_TRAJECTORY if trajectory_usd is None else why.get(v.name) for v in verifiers}
    before = run.make.thousand(trajectory_usd, BLENDED, "judged trajectories", why=_NO_TRAJECTORY)
    parts: dict[str, Table | Paragraph] = {
        "says": Paragraph(compared.says),
        "cost": report_table(
            run.stamp,
            "What a correct answer costs with each",
            "verifier | accepts | TPR | FPR | PPV | a verdict | 1,000 correct | cheapest in",
            (_cost(run, v, source, unpriced[v.name], no_interval) for v in verifiers),
            view=BLENDED,
            footer=((JUDGED, None, None, None, None, None, before, None),),
        ),
        "scores": report_table(
            run.stamp,
            "How well each reports probabilities: 0 is best for both",
            "verifier | saw | scored on | Brier | logarithmic",
            (_scores(run, v, source) for v in verifiers),
            view=source,
            notes=(f"{compared.shared:,} probes were judged by all.",),
        ),
    }
    return Section(parts)


def _prices(run: PricedRun, judgements: Sequence[Probe]) -> tuple[dict[str, Fraction | None], dict[str, str]]:
    prices: dict[str, Fraction | None] = {}
    why: dict[str, str] = {}
    for name in sorted({probe.verifier for probe in judgements}):
        try:
            prices[name] = Fraction(run.book.verifier_at(name, run.run.began_ns).usd_per_verdict)
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
        *(run.make.measure(value, basis=source, why=infinite) for value in (scores.brier, scores.logarithmic)),
    )


def _cost(run: PricedRun, verifier: Verifier, source: str, no_cost: str | None, no_interval: str | None) -> Row:
    make, whys = run.make, ("", "no probe was correct", "no probe was wrong", "it accepted nothing")
    rates = zip(verifier.scores.rates, whys, strict=True)
    usd, interval = verifier.usd_per_correct, None if no_interval else verifier.interval
    no_answer = no_cost or "not enough data: it accepted nothing that was correct"
    no_interval = no_interval or bootstrap.TOO_FEW
    return (
        verifier.name,
        *(make.measure(rate, "share", basis=source, why=f"not enough data: {why}") for rate, why in rates),
        make.money(verifier.usd_per_verdict, BLENDED, per="verdict", basis="price book", why=no_cost),
        make.thousand(usd, BLENDED, "correct answers", why=no_answer, interval=interval, no_interval=no_interval),
        make.measure(verifier.chance_cheapest, "share", basis=source, why=_NOT_COMPARED),
    )
