"""Expert iteration with Hugging Face's Trainer, on a fleet: [ROSE_TOKEN=...] hf_trainer.py URL CHECKPOINT [STEPS]."""

import os
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from rose import client
from rose.client.hf import PublishCallback

FLEET = {"model": "frozenlake-tiny", "token": os.environ.get("ROSE_TOKEN")}
SAMPLING = {"temperature": 1.0, "max_new_tokens": 8}
PROMPTS, SIZE = [[1, 2, 3], [4, 5, 6]], 8


def reward(output_ids: list[int]) -> float:
    """Return the share of even tokens."""
    return sum(token % 2 == 0 for token in output_ids) / max(1, len(output_ids))


class BestAnswers(torch.utils.data.IterableDataset):
    """For each prompt, the best of several answers by the newest weights."""

    def __init__(self, run: client.Run) -> None:
        self.run = run

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        step = 0
        while True:
            for number, prompt in enumerate(PROMPTS):
                group = f"{self.run.run_id}-{step}-{number}"
                answers = self.run.generate([prompt] * SIZE, SAMPLING, group_id=group, step=step)
                rewards = [reward(answer.output_ids) for answer in answers]
                self.run.judge(answers, rewards, verifier="even", threshold=0.5, task="even-tokens")
                best = answers[rewards.index(max(rewards))]
                ids = [*best.prompt_ids, *best.output_ids]
                yield {"input_ids": ids, "labels": [*[-100] * len(prompt), *best.output_ids]}
            step += 1


def main(url: str, checkpoint: str, steps: int = 4) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)  # published as the checkpoint's bf16
    with (
        TemporaryDirectory() as folder,
        client.open_run(url, name="hf-trainer", team="research", checkpoint=checkpoint, **FLEET) as run,
    ):
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=1, report_to=[], save_strategy="no", use_cpu=True
        )
        Trainer(model, arguments, train_dataset=BestAnswers(run), callbacks=[PublishCallback(run)]).train()
        print(f"published version {run.version}; rounded {len(run.published.rounded)} tensors", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])) if len(sys.argv) > 2 else sys.exit(__doc__)
