"""TRL's GRPOTrainer on a fleet: rollouts on its engines, updates here, new weights published before each step.

Install it beside ROSE with `pip install 'trl>=1.16' accelerate datasets`. Run it, on a CPU too, with

    [ROSE_TOKEN=...] python examples/trl_grpo.py http://127.0.0.1:30100 MODEL CHECKPOINT [STEPS]

MODEL is the fleet's rollout model, CHECKPOINT its Hugging Face folder.
"""

import os
import sys
import tempfile
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from rose import client

PROMPTS = ["Name a colour.", "Name an animal."]


class Rollouts:
    """TRL's `rollout_func`, and a reward: the nearer a completion is to 20 characters, the better."""

    def __init__(self, run: client.Run) -> None:
        self.run, self.made, self.published = run, list[client.Generation](), -1

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        step, args = trainer.state.global_step, trainer.args
        if step != self.published:
            model = trainer.accelerator.unwrap_model(trainer.model)
            self.run.publish({name: tensor.detach().bfloat16() for name, tensor in model.named_parameters()})
            self.published = step
        ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
        groups = [f"{self.run.run_id}-{step}-{prompts.index(prompt)}" for prompt in prompts]
        sampling = {"temperature": args.temperature, "max_new_tokens": args.max_completion_length}
        self.made = self.run.generate(ids, sampling, group_ids=groups, step=step)
        completions = [made.output_ids for made in self.made]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [made.logprobs for made in self.made]}

    def reward(self, completions: list[str], **_: Any) -> list[float]:
        rewards = [1 / (1 + abs(len(text) - 20)) for text in completions]
        self.run.judge(self.made, rewards, verifier="length", threshold=0.5)
        return rewards


def main(url: str, model: str, checkpoint: str, steps: int = 3) -> None:
    options = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 16, "bf16": False}
    about = {"name": "trl-grpo", "model": model, "token": os.environ.get("ROSE_TOKEN")}
    with tempfile.TemporaryDirectory() as folder, client.open_run(url, staleness_max=0, **about) as run:
        arguments = GRPOConfig(folder, max_steps=steps, use_cpu=True, report_to="none", save_strategy="no", **options)
        policy, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
        data, rollouts = Dataset.from_dict({"prompt": PROMPTS}), Rollouts(run)
        GRPOTrainer(policy, rollouts.reward, arguments, data, None, tokenizer, rollout_func=rollouts).train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:])) if len(sys.argv) > 3 else sys.exit(__doc__)
