"""Elasticities of alpha, the share of solved groups. With 1% more rollouts, alpha grows by eta_n percent. With 1% more
training, it grows by eta_T percent (docs/pricing.md). Lost and stale trajectories count as not accepted."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import comb, log
from typing import Any

import numpy as np

from rose.pricing.run.cost_per_correct import Groups, size
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Floats, Interval, Ints

GROUPS_MIN, SOLVED_MIN = 30, 5  #: Judged groups that either elasticity needs, and of them with an accepted trajectory.
STEPS_MIN, GROWTH_MIN = 5, 2  #: Steps after the first update that eta_T needs, and the growth of training before them.

_WHOLE = 2**30  #: Scale of chances as integers, which sum equally in any order.
_STEEPEST = 50.0  #: A steeper elasticity is invalid: answers were accepted at a single end.


@dataclass(frozen=True, slots=True)
class Elasticity:
    value: float | None
    interval: Interval | None
    draws: Floats | None
    units: int
    says: str  #: The data behind it, or the missing data.


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStep:
    """The numbers of judged and solved groups of a step, and the training time before this step in nanoseconds."""

    trained_ns: int
    judged: int
    solved: int


def accepted_of(size: int, accepted: int, n: int) -> Fraction:
    """Return the chance that n trajectories, drawn from a group of `size`, include one of its `accepted` ones."""
    return 1 - Fraction(comb(size - accepted, n), comb(size, n))


def of_rollouts(groups: Groups) -> Elasticity:
    """Return eta_n (see the module). Groups with fewer trajectories than the most frequent size are left out."""
    sizes = [(size(row), int(row["accepted"])) for row in groups.rows if row["judged"]]
    if not sizes:
        return _none("no group was judged yet")
    # The most frequent size; of equally frequent sizes the smaller, which keeps more groups.
    n = min(Counter(count for count, _ in sizes).items(), key=lambda item: (-item[1], item[0]))[0]
    used = [(count, accepted) for count, accepted in sizes if count >= n]
    if n < 2:
        return _none("the usual group has 1 trajectory, so nothing says what fewer would have done")
    if problem := _too_few(len(used), sum(accepted > 0 for _, accepted in used), f"of {n} or more trajectories"):
        return _none(problem)
    half = n // 2
    whole = {pair: [round(accepted_of(*pair, count) * _WHOLE) for count in (half, n)] for pair in set(used)}
    columns = np.array([whole[pair] for pair in used], dtype=np.int64)
    drawn = bootstrap.sums(columns)
    assert drawn is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = np.log(drawn[:, 1] / drawn[:, 0]) / log(n / half)
    low, high = (int(total) for total in columns.sum(axis=0))
    value = bootstrap.rounded(log(high / low) / log(n / half))
    says = f"{len(used):,} groups: at least one accepted in {low / len(used) / _WHOLE:.1%} of subsets of {half}, "
    says += f"in {high / len(used) / _WHOLE:.1%} of {n}"
    says += f"; {len(sizes) - len(used):,} smaller groups left out" if len(used) < len(sizes) else ""
    return Elasticity(value, bootstrap.interval(draws, len(used)), draws, len(used), says)


def steps(groups: Groups, training: Iterable[Mapping[str, Any]]) -> list[TrainingStep]:
    """Return the steps with judged groups, in order. Rows of `training` have `step` and `train_ns`, sorted by step."""
    updates = [(int(row["step"]), int(row["train_ns"] or 0)) for row in training]
    updated = [step for step, _ in updates]
    until_ns = [0, *accumulate(ns for _, ns in updates)]
    judged, solved = Counter[int](), Counter[int]()
    for row in groups.rows:
        if row["judged"] and row["step"] is not None:
            judged[row["step"]] += 1
            solved[row["step"]] += row["accepted"] > 0
    return [
        TrainingStep(trained_ns=until_ns[bisect_left(updated, step)], judged=judged[step], solved=solved[step])
        for step in sorted(judged)
    ]


def of_training(judged: Iterable[TrainingStep]) -> Elasticity:
    used = [step for step in judged if step.trained_ns > 0]
    if len(used) < STEPS_MIN:
        return _none(f"{len(used)} steps were judged after the first update; need {STEPS_MIN}")
    if problem := _too_few(sum(s.judged for s in used), sum(s.solved for s in used), "after the first update"):
        return _none(problem)
    growth = used[-1].trained_ns / used[0].trained_ns
    if growth < GROWTH_MIN:
        return _none(f"training grew {growth:.2g}-fold over the steps; need {GROWTH_MIN}-fold")
    trained = np.log(np.array([step.trained_ns for step in used], dtype=np.float64))
    trained -= trained.mean()
    counts, solved = (np.array([getattr(s, name) for s in used], dtype=np.int64) for name in ("judged", "solved"))
    which = bootstrap.drawn_clusters(len(used))
    draws = _slope(trained[which], counts[which], solved[which])
    (value,) = _slope(trained[None], counts[None], solved[None])
    if not np.isfinite(value):
        return _none("answers were accepted at one end of the training only")
    first, last = used[0], used[-1]
    says = f"{len(used)} steps, {int(counts.sum()):,} groups; training before them grew {growth:.3g}-fold, alpha "
    says += f"went from {first.solved / first.judged:.1%} to {last.solved / last.judged:.1%}"
    return Elasticity(bootstrap.rounded(value), bootstrap.interval(draws, len(used)), draws, len(used), says)


def _slope(x: Floats, judged: Ints, solved: Ints) -> Floats:
    """Return b of the maximum-likelihood fit solved = judged * exp(a + b * x), for each row. The maximum is unique."""
    b = np.zeros(len(x))
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = (solved * x).sum(axis=1) / solved.sum(axis=1)
        for _ in range(100):
            expected = judged * np.exp(b[:, None] * x)
            expected /= expected.sum(axis=1, keepdims=True)
            mean = (expected * x).sum(axis=1)
            spread = (expected * (x - mean[:, None]) ** 2).sum(axis=1)
            step = np.where(spread > 0, np.clip((wanted - mean) / spread, -1, 1), np.nan)
            b = np.clip(b + step, -_STEEPEST, _STEEPEST)
            if not (np.abs(step) > 1e-12).any():
                break
    return np.where(np.abs(b) == _STEEPEST, np.copysign(np.inf, b), b)


def _too_few(groups: int, solved: int, which: str) -> str | None:
    if groups < GROUPS_MIN:
        return f"{groups} judged groups {which}; need {GROUPS_MIN}"
    if solved < SOLVED_MIN:
        return f"{solved} groups {which} had an accepted trajectory; need {SOLVED_MIN}"
    return None


def _none(missing: str) -> Elasticity:
    return Elasticity(None, None, None, 0, f"not enough data: {missing}")
