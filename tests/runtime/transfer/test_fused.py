from __future__ import annotations

import pytest
import torch

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.fused import hf_views

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, VOCAB = 4, 2, 8, 32, 48, 50


class Layer(torch.nn.Module):
    """One layer with the names and fused shapes of SGLang's Llama."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.self_attn = torch.nn.Module()
        self.self_attn.qkv_proj = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=bias)
        self.self_attn.o_proj = torch.nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.mlp = torch.nn.Module()
        self.mlp.gate_up_proj = torch.nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.mlp.down_proj = torch.nn.Linear(INNER, HIDDEN, bias=False)
        self.input_layernorm = torch.nn.RMSNorm(HIDDEN)


def engine(bias: bool = False) -> torch.nn.Module:
    root = torch.nn.Module()
    root.model = torch.nn.Module()
    root.model.embed_tokens = torch.nn.Embedding(64, HIDDEN)
    root.model.layers = torch.nn.ModuleList([Layer(bias), Layer(bias)])
    root.model.norm = torch.nn.RMSNorm(HIDDEN)
    return root


def test_names_and_rows_are_those_of_the_checkpoint() -> None:
    root = engine(bias=True)
    views = hf_views(root.named_parameters(), HEADS, KV_HEADS, HEAD_DIM, vocab_size=VOCAB)
    shapes = {name: tuple(view.shape) for name, view in views.items() if ".layers.1." not in name}
    assert shapes == {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": (32, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (16, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (16, HIDDEN),
        "model.layers.0.self_attn.q_proj.bias": (32,),
        "model.layers.0.self_attn.k_proj.bias": (16,),
        "model.layers.0.self_attn.v_proj.bias": (16,),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, 32),
        "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.norm.weight": (HIDDEN,),
    }
    fused = root.get_parameter("model.layers.1.self_attn.qkv_proj.weight")
    parts = [views[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(torch.cat(parts), fused)


def test_writing_to_a_view_writes_to_the_engine() -> None:
    root = engine()
    views = hf_views(root.named_parameters(), HEADS, KV_HEADS, HEAD_DIM)
    views["model.layers.0.self_attn.k_proj.weight"].fill_(7)
    views["model.layers.0.mlp.up_proj.weight"].fill_(9)
    qkv = root.get_parameter("model.layers.0.self_attn.qkv_proj.weight")
    assert (qkv == 7).all(dim=1).nonzero().flatten().tolist() == list(range(32, 48))
    gate_up = root.get_parameter("model.layers.0.mlp.gate_up_proj.weight")
    assert (gate_up == 9).all(dim=1).nonzero().flatten().tolist() == list(range(INNER, 2 * INNER))
    assert all(view.is_contiguous() for view in views.values())


def test_wrong_head_counts_and_vocabulary_are_refused() -> None:
    root = engine()
    with pytest.raises(TransferError, match=r"qkv_proj\.weight' has 64 rows, expected \{'q_proj': 64"):
        hf_views(root.named_parameters(), 8, KV_HEADS, HEAD_DIM)
    with pytest.raises(TransferError, match=r"embed_tokens\.weight' has 64 rows, expected at least 65"):
        hf_views(root.named_parameters(), HEADS, KV_HEADS, HEAD_DIM, vocab_size=65)
