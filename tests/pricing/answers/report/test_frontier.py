from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rose import events
from rose.pricing import formulas
from rose.pricing.answers.frontier import UNKNOWN
from rose.pricing.answers.report.frontier import FREE, THREE_LINES, TWO_LINES, outlook
from rose.pricing.run.priced import priced


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
        document = outlook(run)
    eta = document.elasticities
    assert eta["n"].value == 3
    # 12 groups each of 4, 4 and 1 trajectories: the usual one has 4.
    assert "24 judged groups of 4 or more" in eta["eta_n"].text
    assert eta["eta_t"].value is not None
    assert eta["eta_t"].value > 0
    assert "33 groups; training before them grew 11-fold" in document.rests_on["eta_t"]
    # Three of the six judged in each step were accepted, and t0 of the first six steps was not: 30 of 72.
    assert eta["independent"].value == pytest.approx(formulas.best_of_n_elasticity(30 / 72, 3))
    assert "an elasticity is not known" in eta["left"].text
    for name in (TWO_LINES, THREE_LINES):
        assert document.answers[name].side == UNKNOWN
        assert document.answers[name].gain_training.value is not None
        assert document.answers[name].gain_inference.value is None
    assert "not enough data to tell" in document.rollouts
    assert "Independent tries always stay below 1%" in document.rollouts
    json.dumps(document.to_json(), allow_nan=False)


def test_the_dollars_of_the_sample(sample_kept: Path) -> None:
    with priced(sample_kept) as run:
        document = outlook(run)
    spend = {name: figure.value for name, figure in document.spend.items()}
    # Two half hours of 720 s of serving at $2.35 an hour.
    assert spend["inference"] == 940_000_000
    # 7000 useful tokens at 1.41 / 5600, and the dedicated device's 1080 s of updates and 72 s of syncs.
    assert spend["training"] == 1_762_500_000 + 752_000_000
    assert spend["psi"] == pytest.approx(1.7625 / 2.5145)
    assert spend["phi"] == pytest.approx(0.2)
    borrowed = round(sum(run.cost.paid.values()) * 10**9) - 1_410_000_000
    assert spend["training_with_borrowing"] == pytest.approx(1_410_000_000 + 752_000_000 + borrowed, abs=2)
    assert spend["threshold"] == pytest.approx(0.94 / 2.5145)
    assert spend["kappa3"] == pytest.approx(940_000_000 / (spend["training_with_borrowing"] or 0))
    assert document.answers[FREE].side == UNKNOWN
    assert "2 judged groups of 4 or more trajectories" in document.rests_on["eta_n"]
    assert "0 steps were judged after the first update" in document.rests_on["eta_t"]
