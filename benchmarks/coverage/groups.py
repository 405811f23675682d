"""Simulated runs on borrowed and dedicated devices; the truth comes from very many groups."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from benchmarks.coverage.shown import Shown, shown, wandering
from rose.pricing.answers import breakdown, elasticity, frontier, verifiers
from rose.pricing.answers.probes import Probe
from rose.pricing.run import cost_per_correct
from rose.pricing.run.cost_per_correct import Groups, TokenCost
from rose.pricing.run.tokens import BLOCKS, FATES, Spread, Tokens
from rose.pricing.run.tokens import spreads as token_spreads
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats
from rose.pricing.stats.uncertainty import Estimate

TRAJECTORIES = 8
CPM_USD = 2.0
NS_PER_TOKEN = 20_000_000
USD_PER_NS = {"borrowed": 2.0 / 3.6e12, "dedicated": 2.5 / 3.6e12}
#: The marginal cost of a nanosecond of borrowed time, and the relative standard deviation of its estimate.
MARGINAL_USD_PER_NS, MARGINAL_ERROR = 0.3 / 3.6e12, 0.15
MANY = 50_000


@dataclass(frozen=True, slots=True)
class Flow:
    """Correlation of neighbours' tokens, and of their borrowed part under `load` (None: independent)."""

    name: str
    groups: int
    tokens: float = 0.0
    load: float | None = None


ALONE = Flow("independent groups", 40)
FLOWS = (ALONE, Flow("correlated groups", 120, 0.4), Flow("leases follow load", 160, 0.3, 0.6))


@dataclass(frozen=True, slots=True)
class Run:
    groups: Groups
    blocks: list[dict[str, Any]]
    ns: dict[str, int]
    tokens: dict[str, Tokens]


def simulate(random: np.random.Generator, flow: Flow = ALONE, size: int | None = None, lost_share: float = 0.3) -> Run:
    """Simulate groups, each with its own chance of acceptance; hard groups take longer, and some are stale."""
    size = size or flow.groups
    chance = random.beta(2.0, 2.5, size)
    trajectories = TRAJECTORIES - random.binomial(2, lost_share, size)
    accepted = random.binomial(trajectories, chance)
    audited = random.binomial(accepted, 0.5)
    correct = random.binomial(audited, 0.9)
    length = np.exp(6 + 0.5 * wandering(random, size, flow.tokens)) * (1.5 - chance)
    answer = random.poisson(length * 0.2 * trajectories) + 1
    output = np.rint(length * trajectories).astype(np.int64) + answer
    share = random.beta(1.5, 1.5, size)
    if flow.load is not None:
        share = 1 / (1 + np.exp(-1.2 * wandering(random, size, flow.load)))
    output_by_place = {"borrowed": np.rint(output * share).astype(np.int64)}
    output_by_place["dedicated"] = output - output_by_place["borrowed"]
    stale = random.random(size) < 0.1
    ns = {place: np.rint(tokens * NS_PER_TOKEN * _speed(random, size)) for place, tokens in output_by_place.items()}
    fresh = {"judged": trajectories, "accepted": accepted, "audited": audited, "audited_correct": correct}
    columns = {"trajectories": trajectories, "output_tokens": output, "answer_tokens": answer}
    columns |= {name: np.where(stale, 0, values) for name, values in fresh.items()}
    for place, tokens in output_by_place.items():
        columns |= {f"{place}_tokens": tokens, f"{place}_useful": np.where(stale, 0, tokens)}
    counts = {name: values.tolist() for name, values in columns.items()}
    rows = [
        {"group_id": f"g{n:06}", "step": n // 8, **{name: values[n] for name, values in counts.items()}}
        for n in range(size)
    ]
    block = np.arange(size) * BLOCKS // size
    blocks = [
        {
            "placement": place,
            "device_class": "simulated",
            "block": number,
            "rollout_ns": int(ns[place][block == number].sum()),
            "ns": int(ns[place][block == number].sum() * 1.5),
            "tokens": int(output_by_place[place][block == number].sum()),
        }
        for place in output_by_place
        for number in range(BLOCKS)
    ]
    none = dict.fromkeys(FATES, 0)
    became = {
        place: Tokens(none | {"stale": int(tokens[stale].sum()), "rejected": int(tokens[~stale].sum())})
        for place, tokens in output_by_place.items()
    }
    return Run(Groups.of(rows), blocks, {place: int(times.sum()) for place, times in ns.items()}, became)


def _speed(random: np.random.Generator, size: int) -> Floats:
    return np.exp(0.3 * wandering(random, size, 0.4) - 0.045)


def priced(run: Run, random: np.random.Generator | None) -> TokenCost:
    """Return the run's token prices; without `random` at the true marginal price."""
    off = 1.0 if random is None else 1 + MARGINAL_ERROR * random.standard_normal()
    usd = {place: run.ns[place] * price for place, price in USD_PER_NS.items()}
    marginal = run.ns["borrowed"] * MARGINAL_USD_PER_NS * off
    half = 1.959963984540054 * MARGINAL_ERROR * run.ns["borrowed"] * MARGINAL_USD_PER_NS
    useful = {place: run.tokens[place].useful for place in usd}
    spreads = (
        token_spreads(run.blocks, {(place, "simulated"): price for place, price in USD_PER_NS.items()})
        if random is not None
        else dict.fromkeys(("borrowed", "dedicated", "loaded"), Spread(0, 1))
    )
    return TokenCost(
        by_line={
            "serving": Fraction(usd["borrowed"]) / useful["borrowed"],
            "dedicated": Fraction(usd["dedicated"]) / useful["dedicated"],
            "opportunistic": Fraction(marginal) / useful["borrowed"],
            "blended": Fraction(marginal + usd["dedicated"]) / sum(useful.values()),
        },
        paid={"borrowed": Fraction(marginal), "dedicated": Fraction(usd["dedicated"])},
        borrowed_share=Fraction(useful["borrowed"], sum(useful.values())),
        useful=sum(useful.values()),
        borrow=Estimate(marginal, marginal - half, marginal + half),
        no_borrow_interval=None,
        spreads=spreads,
    )


@functools.lru_cache(maxsize=len(FLOWS))
def many(flow: Flow = ALONE) -> tuple[Run, TokenCost]:
    run = simulate(np.random.default_rng(77), flow, MANY)
    return run, priced(run, None)


@functools.lru_cache(maxsize=len(FLOWS))
def truths(flow: Flow = ALONE) -> dict[str, float]:
    run, cost = many(flow)
    groups = run.groups
    figures = {name: float(getattr(groups, name)) for name in ("rho", "alpha", "accept_rate", "r", "ppv")}
    figures["phi"] = float(cost.borrowed_share or 0)
    for line, usd in cost_per_correct.measured(cost, groups).items():
        figures[f"per accepted, {line}"] = float(usd or 0)
        figures[f"per correct, {line}"] = float(usd or 0) / figures["ppv"]
        figures[f"formula, {line}"] = cost_per_correct.formula(CPM_USD, groups.r, groups, cost.pi(line)) or 0.0
    figures["C3 / PPV"] = figures["formula, blended"] / figures["ppv"]
    return figures


def cost(random: np.random.Generator) -> Iterator[Shown]:
    for flow in FLOWS:
        for one in _cost(random, flow):
            yield replace(one, figure=f"{one.figure}, {flow.name}")


def _cost(random: np.random.Generator, flow: Flow) -> Iterator[Shown]:
    run, truth = simulate(random, flow), truths(flow)
    groups, price = run.groups, priced(run, random)
    drawn = cost_per_correct.resample(groups)
    assert drawn is not None
    shares = {
        "alpha": ("solved", "judged_groups"),
        "accept_rate": ("accepted", "judged"),
        "ppv": ("audited_correct", "audited"),
    }
    for name, columns in shares.items():
        yield shown(name, truth[name], cost_per_correct.share_interval(groups, *columns))
    for name in ("rho", "r", "phi"):
        yield shown(name, truth[name], bootstrap.interval(getattr(drawn, name), drawn.units))
    for line in cost_per_correct.LINES:
        accepted, right = cost_per_correct.measured_interval(price, run.tokens, groups, drawn, line)
        yield shown(f"per accepted, {line}", truth[f"per accepted, {line}"], accepted)
        yield shown(f"per correct, {line}", truth[f"per correct, {line}"], right)
        formula, over = cost_per_correct.formula_interval(CPM_USD, price, drawn, line)
        yield shown(f"formula, {line}", truth[f"formula, {line}"], formula)
        if line == "blended":
            yield shown("C3 / PPV", truth["C3 / PPV"], over)
    parts = breakdown.parts([{**row, "part": f"task {n % 2}"} for n, row in enumerate(groups.rows)], price)
    yield shown("per accepted by task", truth["per accepted, blended"], parts[0].interval)


ETA_T, STEPS, PER_STEP = 0.25, 14, 24


def _learning(random: np.random.Generator) -> list[elasticity.TrainingStep]:
    """Return steps whose accept rates follow a power of their training, with scatter."""
    trained = np.arange(1, STEPS + 1)
    alpha = np.clip(0.25 * trained**ETA_T * random.lognormal(-0.005, 0.1, STEPS), 0, 0.98)
    return [
        elasticity.TrainingStep(
            trained_ns=int(t) * 10**9, judged=PER_STEP, solved=int(random.binomial(PER_STEP, chance))
        )
        for t, chance in zip(trained, alpha, strict=True)
    ]


@functools.lru_cache(maxsize=1)
def _eta_n() -> float:
    value = elasticity.of_rollouts(simulate(np.random.default_rng(78), size=MANY, lost_share=0).groups).value
    assert value is not None
    return value


def elasticities(random: np.random.Generator) -> Iterator[Shown]:
    """Yield both elasticities, and their difference."""
    eta_n = elasticity.of_rollouts(simulate(random, size=60, lost_share=0).groups)
    eta_t = elasticity.of_training(_learning(random))
    yield shown("eta_n", _eta_n(), eta_n.interval, eta_n.says)
    yield shown("eta_T", ETA_T, eta_t.interval, eta_t.says)
    answer = frontier.next_step(eta_n, eta_t, (0.1 / 60 / TRAJECTORIES, 1 / 1000), "slack second")
    true = _eta_n() * 0.1 / 60 / TRAJECTORIES - ETA_T / 1000
    yield shown("next slack second, inference less training", true, answer.interval)


def verdicts(random: np.random.Generator) -> Iterator[Shown]:
    """Yield the cost per correct answer with a verifier."""
    run, truth = simulate(random), truths()
    price, drawn = priced(run, random), cost_per_correct.resample(run.groups)
    assert drawn is not None
    usd = sum(price.paid.values(), Fraction(0)) / run.groups.judged
    probes = []
    for group, chance in enumerate(random.beta(2, 2, 30)):
        for n in range(4):
            right = bool(random.random() < chance)
            accepts = bool(random.random() < (0.9 if right else 0.2))
            probes.append(Probe(f"{group}-{n}", "v", 0.5, correct=right, accepted=accepts, group=str(group)))
    draws = cost_per_correct.judged_draws(price, run.tokens, run.groups, drawn)
    compared = verifiers.compare(probes, usd, {"v": Fraction(1, 100_000)}, draws)
    per_judged = truth["per accepted, blended"] * truth["accept_rate"]
    yield shown("a correct answer with a verifier", (per_judged + 1e-5) / 0.45, compared.verifiers[0].interval)
