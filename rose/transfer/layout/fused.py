"""Views of an engine's parameters under the trainer's names. SGLang joins the matrices q, k and v, and gate and up."""

from collections.abc import Iterable

import torch

from rose.transfer.errors import TransferError


def hf_views(
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    vocab_size: int | None = None,
    tp: int = 1,
    rank: int = 0,
) -> dict[str, torch.Tensor]:
    """Return views of `named_parameters()` under Hugging Face names. Head counts are per rank. Raises TransferError."""
    views: dict[str, torch.Tensor] = {}
    for name, parameter in named_parameters:
        weight = parameter.data
        module, _, leaf = name.rpartition(".")
        path, _, kind = module.rpartition(".")
        if kind == "qkv_proj":
            kv_rows = num_kv_heads * head_dim
            parts = {"q_proj": num_heads * head_dim, "k_proj": kv_rows, "v_proj": kv_rows}
        elif kind == "gate_up_proj":
            half = weight.shape[0] // 2
            parts = {"gate_proj": half, "up_proj": half}
        elif kind in ("embed_tokens", "lm_head") and vocab_size is not None:
            held = weight.shape[0]
            if held * tp < vocab_size:
                raise TransferError(f"parameter {name!r} has {tp} times {held} rows, expected at least {vocab_size}")
            if (rows := min(held, vocab_size - rank * held)) > 0:
                views[name] = weight[:rows]
            continue
        else:
            views[name] = weight
            continue
        if sum(parts.values()) != weight.shape[0]:
            raise TransferError(f"parameter {name!r} has {weight.shape[0]} rows, expected {parts}: check head counts")
        start = 0
        for part, count in parts.items():
            views[f"{path}.{part}.{leaf}"] = weight[start : start + count]
            start += count
    return views
