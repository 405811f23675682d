import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from rose import config
from rose.client import Run
from rose.events import Step
from rose.runtime.rollout.environments.protocol import Traits
from rose.runtime.rollout.players import Game, Played
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.scheduling.turns import turn_queue
from rose.runtime.training import loop
from rose.runtime.training.checkpoint import Checkpoint, CheckpointError
from rose.runtime.training.train import train
from rose.runtime.training.trainer import StepStats
from tests.client.fleet import Engine, Fetching, fleet
from tests.long_form import usual
from tests.runtime.training.frozenlake_fleet import FILE, Recorded, engine, moves


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the loop handles it."""


#: Before or after what the loop is ended, and on which call of it.
POINTS = [
    (Checkpoint, "begin", "before", 1),
    (Checkpoint, "save_update", "before", 1),
    (Checkpoint, "save_update", "after", 1),
    # The first publication of a process is of what it goes on from.
    (Run, "publish", "after", 2),
    (Checkpoint, "save_step", "after", 1),
    (Run, "record", "after a step", 1),
]


def learn(folder, url, model, *, steps, say=lambda _: None, done=lambda _: None, **more):
    fleet_file = config.parse(FILE.format(cache=folder, model=model, steps=steps), "the test's")
    return train(url, None, folder / "kept", say, done, **{"fleet": fleet_file, "kept": True, "resume": True} | more)


def end_at(monkeypatch, owner, name, when, call):
    method, calls = getattr(owner, name), []

    def wrapped(self, *arguments, **named):
        if when == "after a step" and not any(isinstance(argument, Step) for argument in arguments):
            return method(self, *arguments, **named)
        calls.append(name)
        if when == "before" and len(calls) == call:
            raise Killed
        result = method(self, *arguments, **named)
        if len(calls) == call:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, wrapped)


def test_wherever_a_trainer_is_killed_no_step_and_no_version_is_made_twice(tmp_path, tiny_policy, monkeypatch):
    points = usual(POINTS[2:4], long=POINTS)
    steps = len(points) + 1
    recorded, rollouts = Recorded(), engine(tmp_path / "staging")
    # Who is killed says nothing to the controller.
    monkeypatch.setattr(Run, "__exit__", lambda run, *_: run.leave())
    with fleet(tmp_path / "state", rollouts, writer=recorded, model=str(tiny_policy)) as service:
        run_ids = set()
        for point in [*points, None]:
            with monkeypatch.context() as patched:
                if point is None:
                    run_ids.add(learn(tmp_path, service.url, tiny_policy, steps=steps))
                else:
                    end_at(patched, *point)
                    with pytest.raises(Killed):
                        learn(tmp_path, service.url, tiny_policy, steps=steps)
        facts = service.gateway.controller.runs.get(*run_ids).facts
    assert (facts.version, facts.step) == (steps, steps - 1)
    assert [(step.step, step.policy_version) for step in recorded.of("step")] == [(n, n + 1) for n in range(steps)]
    check(recorded, rollouts, steps)


def check(recorded, rollouts, steps):
    verdicts, trajectories = recorded.of("verdict"), recorded.of("trajectory")
    assert [sum(verdict.step == step for verdict in verdicts) for step in range(steps)] == [8] * steps
    assert {verdict.trajectory_id for verdict in verdicts} <= {item.trajectory_id for item in trajectories}
    assert all(0 <= item.staleness <= 1 for item in trajectories)
    assert all(turn.step is not None and turn.group_id for turn in recorded.of("turn"))
    held = [version for run_id, version in rollouts.held]
    assert all(before < after for before, after in pairwise(held))


@pytest.mark.long
def test_steps_are_played_while_the_one_before_is_trained(tmp_path, tiny_policy):
    recorded, rollouts, done = Recorded(), engine(tmp_path / "staging", pause_s=0.02), []
    with fleet(tmp_path / "state", rollouts, writer=recorded, model=str(tiny_policy)) as service:
        run_id = learn(tmp_path, service.url, tiny_policy, steps=3, done=done.append, kept=False, resume=False)
        run = service.gateway.controller.runs.get(run_id).facts
    assert (run.state, run.outcome, run.team, run.version, run.task) == ("closed", "ended", "research", 3, "frozenlake")
    assert [step.step for step in done] == [0, 1, 2]
    check(recorded, rollouts, 3)
    played = {(item.step, item.policy_version) for item in recorded.of("trajectory")}
    assert any(version < step for step, version in played), "a step began before the version that trains on it"


class LentLater(Engine):
    def __init__(self, folder):
        super().__init__(tokens=moves, fetch=Fetching(folder))
        self.lent = threading.Event()

    def report(self):
        return super().report().model_copy(update={"capacity": 64 if self.lent.is_set() else 0})


def test_no_step_is_spent_while_no_engine_is_lent(tmp_path, tiny_policy, monkeypatch):
    monkeypatch.setattr(loop, "_AGAIN_S", 0.0)
    recorded, messages, rollouts = Recorded(), [], LentLater(tmp_path / "staging")
    why = "start again: no rollout engine made progress on the turn"
    with (
        fleet(tmp_path / "state", rollouts, writer=recorded, model=str(tiny_policy)) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            with monkeypatch.context() as patched:
                patched.setattr(turn_queue, "QUEUE_MAX_S", 0.05)
                training = pool.submit(learn, tmp_path, service.url, tiny_policy, steps=2, say=messages.append)
                while not training.done() and sum(line.startswith("step 1:") and why in line for line in messages) < 3:
                    time.sleep(0.02)
            (run,) = service.gateway.controller.runs
            assert (run.facts.version, run.facts.step, recorded.of("step")) == (0, None, [])
        finally:
            rollouts.lent.set()
        training.result(120)
        assert (run.facts.version, run.facts.step) == (2, 1)
    check(recorded, rollouts, 2)
    assert {item.outcome for item in recorded.of("trajectory")} <= {"finished", "truncated"}
    assert any("~" in verdict.trajectory_id for verdict in recorded.of("verdict"))


def played(name, *, lost=False, failed=False):
    trajectory = Trajectory(
        trajectory_id=name,
        group_id="r-s0-g0",
        step=0,
        task="frozenlake",
        traits=Traits(verifier="frozenlake-goal", verifier_version="1"),
        outcome="lost" if lost else "finished",
        failed=failed,
    )
    return Played(game=Game(trajectory_id=name, group_id="r-s0-g0", seed=0, number=0), trajectory=trajectory)


def test_a_game_is_given_up_once_engines_failed_at_it_and_its_step_has_others():
    rollouts = loop._Rollouts(step=0, games=2, began_ns=0)
    rollouts.take(played("r-s0-g0-1"))
    for tries in range(10):
        lost = played(f"r-s0-g0-0~{tries}", lost=True)
        rollouts.take(lost)
        assert rollouts.take_lost() == [lost], "no engine took it"
    assert not rollouts.complete
    rollouts = loop._Rollouts(step=0, games=2, began_ns=0)
    names = [f"r-s0-g0-0{tries}" for tries in ("", "~1", "~2", "~3", "~4")]
    for name in names[:4]:
        lost = played(name, lost=True, failed=True)
        rollouts.take(lost)
        assert rollouts.take_lost() == [lost]
    rollouts.take(played("r-s0-g0-1"))
    assert (rollouts.complete, rollouts.ended_ns) == (False, None)
    rollouts.take(played(names[4], lost=True, failed=True))
    assert rollouts.take_lost() == []
    assert (rollouts.complete, rollouts.ended_ns is None) == (True, False)
    assert [trajectory.outcome for trajectory in rollouts.trajectories] == ["finished", "lost"]


def test_a_folder_that_holds_a_run_is_not_begun_in_again_nor_with_other_tables(tmp_path, tiny_policy):
    kept = Checkpoint(tmp_path / "kept")
    url = "http://127.0.0.1:9"
    with pytest.raises(CheckpointError, match=r"another trainer, pid .* works in"):
        learn(tmp_path, url, tiny_policy, steps=3, resume=False)
    fleet_file = config.parse(FILE.format(cache=tmp_path, model=tiny_policy, steps=3), "the test's")
    kept.begin("run-1", fleet_file.task, fleet_file.training.model_copy(update={"seed": 3}))
    kept.close()
    with pytest.raises(CheckpointError, match="has run run-1: give --resume"):
        learn(tmp_path, url, tiny_policy, steps=3, resume=False)
    with pytest.raises(CheckpointError, match=r"training\.seed is 0 but the run began with 3"):
        learn(tmp_path, url, tiny_policy, steps=3)


def test_a_step_counts_neither_lost_trajectories_nor_numbers_of_an_update_that_diverged():
    stats = StepStats(version=3, loss=math.nan, entropy=0.0, kl=0.0, grad_norm=math.inf, tokens_trained=4, stale=["t1"])
    trajectories = [
        replace(played(f"t{number}", lost=number == 2).trajectory, reward=reward, correct=reward > 0)
        for number, reward in enumerate((1.0, 0.0, 0.0))
    ]
    event = loop.step_event(2, stats, trajectories, rollout_ns=2_000_000_000, train_ns=3, total_ns=9)
    assert (event.groups, event.trajectories, event.trajectories_accepted, event.reward_mean) == (1, 2, 1, 0.5)
    assert (event.loss, event.grad_norm, event.entropy) == (None, None, 0.0)
    judged = [(verdict.trajectory_id, verdict.stale) for verdict in loop.verdicts(stats, trajectories)]
    assert judged == [("t0", False), ("t1", True)]
    assert loop.step_line(event, 10, 7) == "step 3/10: 1/2 accepted, 7 tokens in 2.0 s, update 0.0 s, v3 published"
