from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rose import events
from rose.pricing import formulas
from rose.pricing.answers.frontier import UNKNOWN
from rose.pricing.answers.report.frontier import (
    ETA_N,
    ETA_T,
    FREE,
    INDEPENDENT,
    LEFT,
    THREE_LINES,
    TWO_LINES,
    N,
    frontier,
)
from rose.pricing.run.priced import PricedRun, priced


def many_steps(made: list[events.Event]) -> list[events.Event]:
    """The sample with its groups in each of twelve steps, and g0 solved in the later ones only; updates between."""
    grouped = [event for event in made if isinstance(event, events.Turn | events.Trajectory | events.Verdict)]
    rest = [event for event in made if event not in grouped]
    for step in range(12):
        for event in grouped:
            copy = replace(
                event, step=step, group_id=f"{event.group_id}-{step}", trajectory_id=f"{event.trajectory_id}-{step}"
            )
            if isinstance(copy, events.Verdict) and event.trajectory_id == "t0" and step < 6:
                copy = replace(copy, accepted=False)
            rest.append(copy)
        rest.append(
            events.Step(
                step=step,
                groups=3,
                trajectories=9,
                trajectories_accepted=3,
                reward_mean=0,
                loss=0,
                entropy=None,
                kl=None,
                grad_norm=None,
                tokens_trained=1,
                rollout_ns=1,
                train_ns=90 * 10**9,
                sync_ns=1,
                total_ns=1,
            )
        )
    return rest


def test_the_frontier_of_a_run(sample_made: list[events.Event], write_ledger: Callable[..., Path]) -> None:
    with priced(write_ledger(many_steps(sample_made))) as run:
        answer = frontier(run)
    eta = answer.table("elasticities")
    assert eta.row(N)["value"].value == 3
    # 12 groups each of 4, 4 and 1 trajectories: the usual one has 4.
    assert "24 judged groups of 4 or more" in eta.row(ETA_N)["value"].text
    assert (eta.row(ETA_T)["value"].value or 0) > 0
    assert "33 groups; training before them grew 11-fold" in eta.row(ETA_T)["rests on"]
    # Three of the six judged in each step were accepted, and t0 of the first six steps was not: 30 of 72.
    assert eta.row(INDEPENDENT)["value"].value == pytest.approx(formulas.best_of_n_elasticity(30 / 72, 3))
    assert "an elasticity is not known" in eta.row(LEFT)["value"].text
    for name in (TWO_LINES, THREE_LINES):
        row = answer.table("answers").row(name)
        assert row["side"] == UNKNOWN
        assert row["training"].value is not None
        assert row["inference"].value is None
    assert "not enough data to tell" in answer.text("rollouts")
    assert "Independent tries always stay below 1%" in answer.text("rollouts")
    json.dumps(answer.to_json(), allow_nan=False)


def test_the_dollars_of_the_sample(priced_sample: PricedRun) -> None:
    run = priced_sample
    answer = frontier(run)
    inference, training, as_paid, psi, phi, _, threshold, kappa3 = (
        row["value"].value for row in answer.table("spend").records()
    )
    # Two half hours of 720 s of serving at $2.35 an hour.
    assert inference == 940_000_000
    # 7000 useful tokens at 1.41 / 5600, and the dedicated device's 1080 s of updates and 72 s of syncs.
    assert training == 1_762_500_000 + 752_000_000
    assert psi == pytest.approx(1.7625 / 2.5145)
    assert phi == pytest.approx(0.2)
    borrowed = round(sum(run.cost.paid.values()) * 10**9) - 1_410_000_000
    assert as_paid == pytest.approx(1_410_000_000 + 752_000_000 + borrowed, abs=2)
    assert threshold == pytest.approx(0.94 / 2.5145)
    assert kappa3 == pytest.approx(940_000_000 / as_paid)
    assert answer.table("answers").row(FREE)["side"] == UNKNOWN
    rests_on = {row["what"]: row["rests on"] for row in answer.table("elasticities").records()}
    assert "2 judged groups of 4 or more trajectories" in rests_on[ETA_N]
    assert "0 steps were judged after the first update" in rests_on[ETA_T]
