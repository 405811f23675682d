"""The trainer: holds the policy in float32, updates it from trajectories, and publishes it as bfloat16."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rose.config import TrainingConfig
from rose.ledger.files.layout import replace_file
from rose.runtime.models.policy_model import Policy, generated_logits
from rose.runtime.rollout.frozenlake import seed_of
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.training.grpo import advantages, entropy, token_loss

#: The maximum number of padded tokens in one forward and backward pass, which bounds memory. It applies to a model that
#: has `_TOKEN_VALUES` values (hidden size times layers) for each token. A larger model has a lower maximum.
MICRO_BATCH_TOKENS = 4096
_TOKEN_VALUES = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStats:
    """The result of one update: means over the trained tokens, or 0.0 if no group has differing rewards."""

    version: int
    loss: float
    entropy: float
    kl: float  #: k3 estimate of the distance to the sampling policy.
    grad_norm: float  #: Largest norm before clipping.
    tokens_trained: int
    stale: list[str]


class Trainer:
    """The policy and its optimiser on `device`. The checkpoint is version 0, and each update makes the next version."""

    def __init__(self, checkpoint: Path, training: TrainingConfig, device: torch.device | str = "cpu") -> None:
        self.policy = Policy.load(checkpoint, device)
        self.version = 0
        self._training = training
        # With a short memory of squared gradients, noise moves parameters without a signal.
        parameters, rate = self.policy.parameters(), training.learning_rate
        self._optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.999), weight_decay=0.0)

    def weights(self) -> dict[str, Tensor]:
        return self.policy.weights()

    def update(self, trajectories: Sequence[Trajectory]) -> StepStats:
        """Learn in one pass. Leave out lost and stale trajectories, and groups whose rewards are all equal."""
        stale = [t for t in trajectories if t.staleness(self.version) > self._training.staleness_max]
        dropped = {t.trajectory_id for t in stale} | {t.trajectory_id for t in trajectories if t.outcome == "lost"}
        used = [t for t in trajectories if t.trajectory_id not in dropped]
        gains = advantages([t.reward for t in used], [t.group_id for t in used])
        samples = [(t, gain) for t, gain in zip(used, gains, strict=True) if gain != 0.0 and t.output_tokens]
        order = np.random.default_rng(seed_of(self._training.seed, self.version)).permutation(len(samples))
        samples = [samples[index] for index in order]
        size = math.ceil(len(samples) / self._training.minibatches) or 1
        totals, grad_norm = torch.zeros(3, dtype=torch.float64, device="cpu"), 0.0
        for first in range(0, len(samples), size):
            sums, norm = self._optimise(samples[first : first + size])
            totals += sums
            grad_norm = max(grad_norm, norm)
        self.version += 1
        tokens = sum(t.output_tokens for t, _ in samples)
        loss, kl, uncertainty = (totals / max(1, tokens)).tolist()
        return StepStats(
            version=self.version,
            loss=loss,
            entropy=uncertainty,
            kl=kl,
            grad_norm=grad_norm,
            tokens_trained=tokens,
            stale=[t.trajectory_id for t in stale],
        )

    def save(self, path: Path, note: str = "") -> None:
        """Save durably all that the next update needs. `note` is returned by `resume`."""
        state = {
            "version": self.version,
            "policy": self.policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "note": note,
        }
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(state, file)
        replace_file(partial, path)

    def resume(self, path: Path) -> str:
        """Continue from the file `path`, and return its note."""
        # Loading moves each tensor to its own device; AdamW's step counts stay on the CPU.
        state = torch.load(path, weights_only=True, map_location="cpu")
        self.version = state["version"]
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        return str(state["note"])

    def _optimise(self, samples: Sequence[tuple[Trajectory, float]]) -> tuple[Tensor, float]:
        training = self._training
        tokens = sum(t.output_tokens for t, _ in samples)
        sums = torch.zeros(3, dtype=torch.float64, device=self.policy.device)
        self._optimizer.zero_grad()
        shape = self.policy.shape
        values = max(_TOKEN_VALUES, shape.hidden_size * shape.num_hidden_layers)
        tokens_max = MICRO_BATCH_TOKENS * _TOKEN_VALUES // values
        for batch in by_length([len(t.ids) for t, _ in samples], tokens_max):
            rows = [samples[index] for index in batch]
            logits, ids = generated_logits(self.policy, [t.ids for t, _ in rows], [t.mask for t, _ in rows])
            # The engine's log probabilities include the temperature.
            logits = logits / training.temperature
            logprobs = torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0]
            sampled = [lp for t, _ in rows for lp, generated in zip(t.logprobs, t.mask, strict=True) if generated]
            behaviour = torch.tensor(sampled, device=self.policy.device)
            gain = torch.tensor([gain for t, gain in rows for _ in range(t.output_tokens)], device=self.policy.device)
            loss, kl = token_loss(logprobs, behaviour, gain, clip_low=training.clip_low, clip_high=training.clip_high)
            (loss / tokens).backward()  # type: ignore[no-untyped-call]
            sums += torch.stack([loss.detach(), kl, entropy(logits).sum()]).double()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), max_norm=1.0)
        self._optimizer.step()
        return sums.cpu(), float(norm)  # This waits for the device, so that the update's time includes its work.


def by_length(lengths: Sequence[int], tokens_max: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > tokens_max:
            batches.append([])
        batches[-1].append(index)
    return batches
