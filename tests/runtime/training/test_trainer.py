from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.transfer import sampler
from rose.config import TaskConfig, TrainingConfig
from rose.runtime.models.policy_model import Policy, PolicyShape
from rose.runtime.models.warm_start import WarmStart, train
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.training import trainer as module
from rose.runtime.training.trainer import Trainer

TASK = TaskConfig(size=3, turns_max=6)

on_each_device = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


rollouts = partial(sampler.rollouts, task=TASK)


def rewarded(trajectories: list[Trajectory], rewards: list[float]) -> list[Trajectory]:
    return [replace(t, reward=reward) for t, reward in zip(trajectories, rewards, strict=True)]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm")
    train(WarmStart(task=TASK, episodes=700, noise=0.6), folder, lambda _: None)
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    Policy(PolicyShape(hidden_size=32, intermediate_size=32, num_hidden_layers=2)).save(tmp_path)
    return tmp_path


@pytest.mark.long
def test_reward_rises_over_a_few_steps(warm: Path) -> None:
    trainer = Trainer(warm, TrainingConfig(learning_rate=3e-4))

    def share() -> float:
        held_out = rollouts(trainer.policy, 128, 1, seed=99)
        return sum(t.reward for t in held_out) / len(held_out)

    before = share()
    assert 0.1 < before < 0.4
    for step in range(4):
        stats = trainer.update(rollouts(trainer.policy, 8, 8, seed=step, version=step))
        assert stats.version == trainer.version == step + 1
    assert share() > before + 0.2


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_trainer_agree_on_log_probabilities(raw: Path, temperature: float) -> None:
    trainer = Trainer(raw, TrainingConfig(minibatches=1, temperature=temperature))
    sampled = rollouts(trainer.policy, 2, 4, temperature=temperature)
    stats = trainer.update(rewarded(sampled, [1, 0, 0, 0] * 2))
    assert stats.tokens_trained == sum(t.output_tokens for t in sampled)
    assert stats.kl == pytest.approx(0, abs=1e-8)
    assert stats.entropy > 0


def test_micro_batches_do_not_change_the_update(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, split = Trainer(raw, TrainingConfig()), Trainer(raw, TrainingConfig())
    sampled = rewarded(rollouts(whole.policy, 2, 4), [1, 0, 0, 1] * 2)
    first = whole.update(sampled)
    monkeypatch.setattr(module, "MICRO_BATCH_TOKENS", 64)
    second = split.update(sampled)
    assert second.loss == pytest.approx(first.loss, rel=1e-3)
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-3)
    for name, weight in whole.policy.state_dict().items():
        assert torch.allclose(weight, split.policy.state_dict()[name], atol=1e-5), name


def test_equal_rewards_make_a_version_with_the_same_weights(raw: Path) -> None:
    trainer = Trainer(raw, TrainingConfig())
    before = trainer.weights()
    stats = trainer.update(rewarded(rollouts(trainer.policy, 2, 4), [0, 0, 0, 0, 1, 1, 1, 1]))
    assert (stats.tokens_trained, stats.loss, trainer.version) == (0, 0.0, 1)
    after = trainer.weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_stale_and_lost_trajectories_are_dropped(raw: Path) -> None:
    trainer = Trainer(raw, TrainingConfig(staleness_max=1))
    sampled = rewarded(rollouts(trainer.policy, 2, 4), [1, 0, 0, 0] * 2)
    trainer.update([])
    sampled[4] = replace(sampled[4], outcome="lost")
    # One version behind is within the bound; two is not.
    assert trainer.update(sampled).stale == []
    fresh = [replace(t, versions=[2 if made else -1 for made in t.mask]) for t in sampled[4:]]
    stats = trainer.update([*sampled[:4], *fresh])
    assert stats.stale == [t.trajectory_id for t in sampled[:4]]
    # Without the winner that was lost, the rest of its group is of one reward.
    assert stats.tokens_trained == 0


def test_a_trainer_goes_on_from_what_it_kept(raw: Path, tmp_path: Path) -> None:
    trainer = Trainer(raw, TrainingConfig())
    sampled = rewarded(rollouts(trainer.policy, 1, 4), [1, 0, 1, 0])
    trainer.update(sampled)
    trainer.save(tmp_path / "trainer.pt", "a note")
    trainer.update(sampled)

    again = Trainer(raw, TrainingConfig())
    assert again.resume(tmp_path / "trainer.pt") == "a note"
    assert again.version == 1
    again.update(sampled)
    assert again.version == trainer.version
    for name, weights in trainer.weights().items():
        assert torch.equal(weights, again.weights()[name]), name


@on_each_device
def test_a_trainer_trains_on_its_device_and_publishes_from_the_cpu(raw: Path, tmp_path: Path, where: str) -> None:
    on_cpu, trainer = Trainer(raw, TrainingConfig()), Trainer(raw, TrainingConfig(), where)
    assert trainer.policy.device.type == where
    sampled = rewarded(rollouts(on_cpu.policy, 2, 4), [1, 0, 1, 0] * 2)
    expected, stats = on_cpu.update(sampled), trainer.update(sampled)
    assert stats.tokens_trained == expected.tokens_trained > 0
    assert stats.loss == pytest.approx(expected.loss, abs=1e-4)
    assert stats.kl == pytest.approx(expected.kl, abs=1e-3)
    for name, weights in trainer.weights().items():
        assert (weights.device.type, weights.dtype) == ("cpu", torch.bfloat16)
        assert torch.allclose(weights, on_cpu.weights()[name], atol=1e-2), name

    # What one kept, another goes on from, whatever device each is on.
    trainer.save(tmp_path / "trainer.pt")
    for again in (Trainer(raw, TrainingConfig()), Trainer(raw, TrainingConfig(), where)):
        again.resume(tmp_path / "trainer.pt")
        again.update(sampled)
        assert again.version == 2
