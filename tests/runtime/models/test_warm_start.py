from dataclasses import replace
from pathlib import Path

import numpy as np

from rose.config import TaskConfig
from rose.runtime.models.warm_start import WarmStart, play, train
from rose.runtime.rollout import vocabulary
from rose.runtime.rollout.frozenlake import FrozenLake, seed_of
from rose.runtime.rollout.trajectory import Transcript

TINY = WarmStart(
    task=TaskConfig(size=3, turns_max=5),
    episodes=16,
    batch_episodes=4,
    shape={"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2},
)


def weights(settings: WarmStart, folder: Path) -> bytes:
    folder.mkdir()
    said: list[str] = []
    train(settings, folder, said.append)
    assert said[-1].startswith("warm start: 100%")
    return (folder / "model.safetensors").read_bytes()


def test_same_settings_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first = weights(TINY, tmp_path / "a")
    assert first == weights(TINY, tmp_path / "b")
    assert first != weights(replace(TINY, seed=1), tmp_path / "c")


def test_digest_follows_what_decides_the_weights() -> None:
    assert TINY.digest() == replace(TINY).digest()
    others = [
        replace(TINY, seed=1),
        replace(TINY, noise=0.1),
        replace(TINY, episodes=20),
        replace(TINY, shape={}),
        replace(TINY, task=TaskConfig(size=4, turns_max=5)),
    ]
    assert len({settings.digest() for settings in (TINY, *others)}) == 6
    assert replace(TINY, task=TaskConfig(size=3, turns_max=5, trajectories_max=4)).digest() == TINY.digest()


def test_the_imitated_player_wins_without_noise_and_less_with_it() -> None:
    settings = WarmStart(task=TaskConfig())

    def reward(game: Transcript, number: int) -> float:
        lake = FrozenLake(settings.task, slip_seed=number)
        lake.reset(seed_of(1, settings.seed, number))
        moves = [token for token, made in zip(game.ids, game.mask, strict=True) if made and token in vocabulary.MOVES]
        return sum(lake.step([move, vocabulary.EOT])[1] for move in moves)

    def share(noise: float) -> float:
        luck = np.random.default_rng(0)
        return sum(reward(play(replace(settings, noise=noise), number, luck), number) for number in range(100)) / 100

    assert share(0.0) == 1.0
    assert share(1.0) < share(0.5) < 0.8
