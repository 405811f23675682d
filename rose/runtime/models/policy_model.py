"""The built-in policy: a small Llama with float32 master weights and bfloat16 checkpoints for Hugging Face."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rose.runtime.platform import cpu
from rose.runtime.rollout import vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyShape:
    vocab_size: int = vocabulary.SIZE
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 2
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False

    def config(self) -> dict[str, object]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": vocabulary.BOS,
            "eos_token_id": vocabulary.EOT,
            "pad_token_id": vocabulary.PAD,
            "torch_dtype": "bfloat16",
        }

    @classmethod
    def read(cls, folder: Path) -> PolicyShape:
        """Return the shape in `folder`/config.json. Raises ValueError for another kind of model."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape = cls(**{name: config[name] for name in cls.__dataclass_fields__ if name in config})
        for name in ("model_type", "hidden_act", "attention_bias", "mlp_bias"):
            if config.get(name) != shape.config()[name]:
                raise ValueError(
                    f"{folder}/config.json: {name} is {config.get(name)!r}, but the built-in trainer handles only "
                    f"{shape.config()[name]!r}; train this model with a trainer of your own"
                )
        return shape


class Policy(nn.Module):
    def __init__(self, shape: PolicyShape, seed: int = 0) -> None:
        super().__init__()
        cpu.define_torchvision()
        from transformers import LlamaConfig, LlamaModel

        self.shape = shape
        self.model = LlamaModel(LlamaConfig(**shape.config()))
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        if shape.tie_word_embeddings:  # Then a checkpoint has no `lm_head.weight`.
            self.lm_head.weight = self.model.embed_tokens.weight
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Projections into the residual stream start smaller, as in GPT-2.
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                shrink = math.sqrt(2 * shape.num_hidden_layers) if residual else 1
                nn.init.normal_(parameter, std=1 / math.sqrt(shape.hidden_size) / shrink, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Return hidden states [batch, length, hidden_size] for int64 `ids` [batch, length], padded on the right."""
        hidden: Tensor = self.model(ids, use_cache=False).last_hidden_state
        return hidden

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().to("cpu", torch.bfloat16).clone() for name, weight in self.named_parameters()}

    def save(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(self.shape.config(), indent=2) + "\n", encoding="utf-8")
        ids = {key: self.shape.config()[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        (folder / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n", encoding="utf-8")
        save_file(self.weights(), folder / "model.safetensors", metadata={"format": "pt"})

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Policy:
        """Return a checkpoint's policy with float32 master weights. Raises ValueError for another kind of model."""
        policy = cls(PolicyShape.read(folder))
        weights = load_file(folder / "model.safetensors")
        if policy.shape.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        policy.load_state_dict(weights)
        return policy.to(device)


def pad(rows: Sequence[Sequence[int]], value: int = vocabulary.PAD, *, device: torch.device | str = "cpu") -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], dtype=torch.int64, device=device)


def generated_logits(
    policy: Policy, ids: Sequence[Sequence[int]], mask: Sequence[Sequence[bool]]
) -> tuple[Tensor, Tensor]:
    """Return the policy's logits [tokens, vocab] for the generated tokens, and the ids [tokens] of these tokens. `mask`
    is True for generated tokens. The hidden state at position i - 1 predicts the token at i."""
    padded = pad(ids, device=policy.device)
    generated = pad([[int(m) for m in row] for row in mask], 0, device=policy.device).bool()
    hidden = policy(padded[:, :-1])
    picked = generated[:, 1:]
    return policy.lm_head(hidden[picked]), padded[:, 1:][picked]
