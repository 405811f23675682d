"""Rollouts in this process without an engine."""

from collections.abc import Sequence

import torch

from rose.config import TaskConfig
from rose.runtime.models.policy_model import Policy, pad
from rose.runtime.rollout.environments.protocol import FROZENLAKE, Traits
from rose.runtime.rollout.frozenlake import MAX_NEW_TOKENS, STOP_TOKEN_IDS, FrozenLake, seed_of
from rose.runtime.rollout.trajectory import Trajectory, Transcript


class Episode(Transcript):
    """A game with its transcript, for a policy in this process."""

    def __init__(self, task: TaskConfig, seed: int, slip_seed: int = 0) -> None:
        super().__init__()
        self.lake = FrozenLake(task, slip_seed)
        self.reward = 0.0
        self._turns_max = task.turns_max
        self.read(self.lake.reset(seed))

    @property
    def done(self) -> bool:
        return self.lake.terminated or self.turns >= self._turns_max

    def apply(self, output_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.write(output_ids, logprobs, versions)
        observation, reward, _, _ = self.lake.step(output_ids)
        self.reward += reward
        if not self.done:
            self.read(observation)


def rollouts(
    policy: Policy,
    groups: int,
    size: int,
    *,
    task: TaskConfig,
    seed: int = 0,
    version: int = 0,
    temperature: float = 1.0,
) -> list[Trajectory]:
    episodes = [
        (f"{version}-{group}", Episode(task, seed_of(seed, group), slip_seed=number))
        for group in range(groups)
        for number in range(size)
    ]
    generator = torch.Generator().manual_seed(seed)
    _play(policy, [episode for _, episode in episodes], temperature, generator, version)
    return [
        Trajectory(
            trajectory_id=f"{group}-{number}",
            group_id=group,
            step=version,
            task=task.environment,
            outcome="finished" if episode.lake.terminated else "truncated",
            ids=episode.ids,
            mask=episode.mask,
            logprobs=episode.logprobs,
            versions=episode.versions,
            reward=episode.reward,
            traits=Traits.of(FrozenLake, FROZENLAKE),
            turns=episode.turns,
            duration_ns=0,
        )
        for number, (group, episode) in enumerate(episodes)
    ]


@torch.no_grad()
def _play(
    policy: Policy, episodes: Sequence[Episode], temperature: float, generator: torch.Generator, version: int
) -> None:
    """Play all episodes to their end in batches."""
    while live := [episode for episode in episodes if not episode.done]:
        outputs: list[list[int]] = [[] for _ in live]
        logprobs: list[list[float]] = [[] for _ in live]
        while writing := [
            row
            for row, output in enumerate(outputs)
            if len(output) < MAX_NEW_TOKENS and (not output or output[-1] not in STOP_TOKEN_IDS)
        ]:
            conversations = [[*live[row].ids, *outputs[row]] for row in writing]
            hidden = policy(pad(conversations))
            last = hidden[torch.arange(len(writing)), torch.tensor([len(ids) - 1 for ids in conversations])]
            choices = torch.log_softmax(policy.lm_head(last) / temperature, -1)
            for index, token in enumerate(torch.multinomial(choices.exp(), 1, generator=generator)[:, 0].tolist()):
                outputs[writing[index]].append(token)
                logprobs[writing[index]].append(float(choices[index, token]))
        for episode, output, made in zip(live, outputs, logprobs, strict=True):
            episode.apply(output, made, [version] * len(output))
