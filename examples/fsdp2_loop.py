"""REINFORCE under FSDP2; each rank generates, and publishes its own shards:
torchrun --nproc-per-node 2 fsdp2_loop.py URL CHECKPOINT [STEPS]"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from rose import client
from rose.runtime.models.policy_model import Policy, generated_logits

FLEET = {"model": "frozenlake-tiny", "token": os.environ.get("ROSE_TOKEN")}
SAMPLING = {"temperature": 1.0, "max_new_tokens": 8}
PROMPTS, SIZE = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]], 8


def reward(output_ids: list[int]) -> float:
    """Return the share of even tokens."""
    return sum(token % 2 == 0 for token in output_ids) / max(1, len(output_ids))


def loss_of(model: Policy, generations: list[client.Generation], rewards: list[float]) -> torch.Tensor:
    """Each token's log probability, weighted by what its answer gained over the mean of its group."""
    gains = [gain - sum(rewards) / len(rewards) for gain in rewards]
    rows = [[*made.prompt_ids, *made.output_ids] for made in generations]
    masks = [[False] * len(made.prompt_ids) + [True] * len(made.output_ids) for made in generations]
    logits, ids = generated_logits(model, rows, masks)
    weights = [gain for made, gain in zip(generations, gains, strict=True) for _ in made.output_ids]
    return -(torch.tensor(weights) * torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0]).mean()


def main(url: str, checkpoint: str, steps: int = 4) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Policy.load(Path(checkpoint))  # float32 masters; published as the checkpoint's bfloat16
    for module in (*model.model.layers, model.lm_head, model):
        fully_shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with client.open_run(
        url, name="fsdp2-loop", team="research", checkpoint=checkpoint, group=dist.group.WORLD, **FLEET
    ) as run:
        run.publish(model.state_dict())
        for step in range(steps):
            prompts, group = [PROMPTS[rank % len(PROMPTS)]] * SIZE, f"{run.run_id}-{step}-{rank}"
            generations = run.generate(prompts, SAMPLING, group_id=group, step=step)
            rewards = [reward(generation.output_ids) for generation in generations]
            run.judge(generations, rewards, verifier="even", threshold=0.5, task="even-tokens")
            optimizer.zero_grad()
            loss_of(model, generations, rewards).backward()
            optimizer.step()
            run.publish(model.state_dict())
            print(f"rank {rank}, step {step}: mean reward {sum(rewards) / SIZE:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])) if len(sys.argv) > 2 else sys.exit(__doc__)
