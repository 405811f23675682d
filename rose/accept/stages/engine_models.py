"""Makes checkpoints without weights, and versions with random weights, for stages that start engines."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rose.runtime.models.policy_model import PolicyShape
from rose.runtime.traffic.prompts import WORDS

LARGE = PolicyShape(
    vocab_size=32768,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
)
SMALL = PolicyShape(vocab_size=1024)
CHANGED_SHARE = 0.014
_UNKNOWN, _END = "<unk>", "</s>"


def write(folder: Path, shape: PolicyShape) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    words = [_UNKNOWN, _END, *WORDS]
    words += [f"w{number}" for number in range(len(words), shape.vocab_size)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=_UNKNOWN, eos_token=_END).save_pretrained(folder)
    return folder


def layers(shape: PolicyShape, count: int) -> PolicyShape:
    return replace(shape, num_hidden_layers=min(count, shape.num_hidden_layers))


def parameter_count(shape: PolicyShape) -> int:
    return sum(int(np.prod(size)) for size in sizes_of(shape).values())


def random_weights(shape: PolicyShape) -> dict[str, torch.Tensor]:
    draw = np.random.default_rng(0)
    # A tensor begins anywhere in this block: drawing every number would take most of a minute.
    block = torch.from_numpy(draw.normal(0, 0.02, 1 << 24).astype(np.float32)).to(torch.bfloat16)
    return {name: _of(block, size, int(draw.integers(1 << 24))) for name, size in sizes_of(shape).items()}


def changed(weights: Mapping[str, torch.Tensor], share: float = CHANGED_SHARE) -> dict[str, torch.Tensor]:
    draw = np.random.default_rng(1)
    changed = {}
    for name, tensor in weights.items():
        bits = tensor.clone().view(torch.int16).numpy().reshape(-1)
        bits[draw.integers(0, bits.size, max(1, round(bits.size * share)))] ^= 1
        changed[name] = torch.from_numpy(bits).view(torch.bfloat16).reshape(tensor.shape)
    return changed


def _of(block: torch.Tensor, size: tuple[int, ...], start: int) -> torch.Tensor:
    count = int(np.prod(size))
    repeats = -(-(start + count) // block.numel())
    return block.repeat(repeats)[start : start + count].reshape(size).clone()


def sizes_of(shape: PolicyShape, *, fused: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the parameters by Hugging Face's names or, if `fused`, by an engine's names."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    attention, mlp = {"q": queries, "k": keys, "v": keys}, {"gate": inner, "up": inner}
    if fused:
        attention, mlp = {"qkv": queries + 2 * keys}, {"gate_up": 2 * inner}
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj": (rows, hidden) for name, rows in attention.items()}
    layer |= {f"mlp.{name}_proj": (rows, hidden) for name, rows in mlp.items()}
    layer |= {"self_attn.o_proj": (hidden, queries), "mlp.down_proj": (hidden, inner)}
    layer |= dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (hidden,))
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for number in range(shape.num_hidden_layers):
        sizes |= {f"model.layers.{number}.{part}.weight": size for part, size in layer.items()}
    return {**sizes, "model.norm.weight": (hidden,), "lm_head.weight": (shape.vocab_size, hidden)}
