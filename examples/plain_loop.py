"""REINFORCE on a fleet: plain_loop.py URL CHECKPOINT [STEPS]. Set ROSE_TOKEN, and ROSE_TEAM, the team that pays."""

import os
import sys
from pathlib import Path
from time import monotonic_ns

import torch

from rose import client
from rose.runtime.models.policy_model import Policy  # any module with the checkpoint's parameter names will do

FLEET = {"model": "frozenlake-tiny", "token": os.environ.get("ROSE_TOKEN")}
SAMPLING = {"temperature": 1.0, "max_new_tokens": 8}
GROUPS, SIZE = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}, 8


def reward(output_ids: list[int]) -> float:
    """Return the share of even tokens."""
    return sum(token % 2 == 0 for token in output_ids) / max(1, len(output_ids))


def loss_of(model: Policy, generation: client.Generation, advantage: float) -> torch.Tensor:
    ids, made = torch.tensor([*generation.prompt_ids, *generation.output_ids]), torch.tensor(generation.output_ids)
    logits = model.lm_head(model(ids[None]))[0, -len(made) - 1 : -1]
    return -advantage * torch.log_softmax(logits, -1).gather(1, made[:, None]).mean()


def main(url: str, checkpoint: str, steps: int = 4) -> None:
    model = Policy.load(Path(checkpoint))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def publish() -> int:
        return run.publish(dict(model.named_parameters()))  # float32 masters, rounded to the checkpoint's bfloat16

    options = {"team": os.environ.get("ROSE_TEAM", "research"), "staleness_max": 0, "checkpoint": checkpoint}
    with client.open_run(url, name="plain-loop", **options, **FLEET) as run:
        publish()
        for step in range(steps):
            began = monotonic_ns()
            prompts = [prompt for prompt in GROUPS.values() for _ in range(SIZE)]
            groups = [f"{run.run_id}-{step}-{name}" for name in GROUPS for _ in range(SIZE)]
            generations = run.generate(prompts, SAMPLING, group_ids=groups, step=step)
            rewards = [reward(generation.output_ids) for generation in generations]
            run.judge(generations, rewards, verifier="even", threshold=0.5, task="even-tokens")
            rolled = monotonic_ns()
            means = [sum(rewards[at : at + SIZE]) / SIZE for at in range(0, len(rewards), SIZE) for _ in range(SIZE)]
            parts = zip(generations, rewards, means, strict=True)
            loss = torch.stack([loss_of(model, made, gained - mean) for made, gained, mean in parts]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trained = monotonic_ns()
            times = {"policy_version": publish(), "publish_ns": monotonic_ns() - trained, "train_ns": trained - rolled}
            run.record(client.step_over(step, generations, rewards, threshold=0.5, rollout_ns=rolled - began, **times))
            print(f"step {step}: mean reward {sum(rewards) / len(rewards):.3f}, loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])) if len(sys.argv) > 2 else sys.exit(__doc__)
