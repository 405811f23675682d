from __future__ import annotations

import math

from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.training.reporting import StepTimes, step_event, step_line, verdicts
from rose.runtime.training.trainer import StepStats

TIMES = StepTimes(rollout_ns=2_000_000_000, train_ns=3, sync_ns=4, total_ns=9)


def stats(**changes):
    fields = {
        "version": 3,
        "loss": 0.5,
        "entropy": 1.0,
        "kl": 0.0,
        "clipped_share": 0.0,
        "grad_norm": 1.0,
        "tokens_trained": 4,
        "trajectories_trained": 2,
        "stale": [],
        "lost": [],
        "duration_ns": 1,
    }
    return StepStats(**fields | changes)


def played(number, *, correct, outcome="finished"):
    return Trajectory(
        trajectory_id=f"t{number}",
        group_id="g",
        step=2,
        task="frozenlake",
        outcome=outcome,
        ids=[1, 2],
        mask=[False, True],
        logprobs=[0.0, -0.5],
        versions=[-1, 2],
        reward=float(correct),
        correct=correct,
        turns=1,
        answer_tokens=1,
        duration_ns=1,
    )


def test_a_step_says_what_its_trajectories_came_to():
    event = step_event(2, stats(), [played(0, correct=True), played(1, correct=False)], TIMES)
    assert (event.step, event.policy_version, event.groups, event.trajectories) == (2, 3, 1, 2)
    assert (event.trajectories_accepted, event.reward_mean) == (1, 0.5)
    line = step_line(event, 10, 7, "v3 published")
    assert line == "step 3/10: 1/2 accepted, 7 tokens in 2.0 s, update 0.0 s, v3 published"


def test_lost_trajectories_count_neither_for_nor_against_a_step():
    trajectories = [played(0, correct=True), played(1, correct=False, outcome="lost")]
    event = step_event(2, stats(lost=["t1"]), trajectories, TIMES)
    assert (event.trajectories, event.trajectories_accepted, event.reward_mean) == (1, 1, 1.0)
    assert [verdict.trajectory_id for verdict in verdicts(stats(lost=["t1"]), trajectories)] == ["t0"]


def test_an_update_that_diverged_is_recorded_without_its_numbers():
    event = step_event(2, stats(loss=math.nan, grad_norm=math.inf), [], TIMES)
    assert (event.loss, event.grad_norm, event.entropy, event.reward_mean) == (None, None, 1.0, 0.0)


def test_a_trajectory_that_was_dropped_for_age_has_a_stale_verdict():
    made = verdicts(stats(stale=["t1"]), [played(0, correct=True), played(1, correct=True)])
    assert [(verdict.trajectory_id, verdict.stale) for verdict in made] == [("t0", False), ("t1", True)]
