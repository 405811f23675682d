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
from torch.nn import functional

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


class Attention(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = _rotate(self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2), cos, sin)
        k = _rotate(self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return merged


class MLP(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Policy(nn.Module):
    def __init__(self, shape: PolicyShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.model = Backbone(shape)
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
        cos, sin = _rotations(self.shape, ids.shape[1], ids.device)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.model.norm(x)
        return out

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


def _rotations(shape: PolicyShape, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device) / shape.head_dim
    angles = torch.arange(length, device=device)[:, None] / shape.rope_theta**half
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs of elements (i, i + head_dim / 2), as Hugging Face's Llama does."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


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
