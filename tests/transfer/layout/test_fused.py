import pytest
import torch

from rose.transfer.layout.fused import hf_views
from rose.transfer.layout.shards import ModelShape, receiver_regions

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, VOCAB = 4, 2, 8, 32, 48, 50


class Layer(torch.nn.Module):
    def __init__(self, bias: bool, tp: int) -> None:
        super().__init__()
        heads, kv_heads, inner = HEADS // tp, max(1, KV_HEADS // tp), INNER // tp
        self.self_attn = torch.nn.Module()
        self.self_attn.qkv_proj = torch.nn.Linear(HIDDEN, (heads + 2 * kv_heads) * HEAD_DIM, bias=bias)
        self.self_attn.o_proj = torch.nn.Linear(heads * HEAD_DIM, HIDDEN, bias=False)
        self.mlp = torch.nn.Module()
        self.mlp.gate_up_proj = torch.nn.Linear(HIDDEN, 2 * inner, bias=False)
        self.mlp.down_proj = torch.nn.Linear(inner, HIDDEN, bias=False)
        self.input_layernorm = torch.nn.RMSNorm(HIDDEN)


def engine(bias: bool = False, tp: int = 1) -> torch.nn.Module:
    """What one of `tp` ranks holds; heads of keys and values are repeated where there are too few."""
    root = torch.nn.Module()
    root.model = torch.nn.Module()
    root.model.embed_tokens = torch.nn.Embedding(64 // tp, HIDDEN)
    root.model.layers = torch.nn.ModuleList([Layer(bias, tp), Layer(bias, tp)])
    root.model.norm = torch.nn.RMSNorm(HIDDEN)
    return root


def test_names_and_rows_are_those_of_the_checkpoint() -> None:
    root = engine(bias=True)
    views = hf_views(root.named_parameters(), HEADS, KV_HEADS, HEAD_DIM, vocab_size=VOCAB)
    assert {name: tuple(view.shape) for name, view in views.items() if ".layers.1." not in name} == {
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
    assert torch.equal(torch.cat([views[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]), fused)


@pytest.mark.parametrize(("tp", "vocab"), [(1, 50), (2, 50), (4, 50), (4, 40), (4, 64), (4, 16)])
def test_the_views_of_a_rank_are_its_boxes(tp: int, vocab: int) -> None:
    """Of 64 rows on 4 ranks the last holds 2 of 50, and none of 40."""
    whole = hf_views(engine(bias=True).named_parameters(), HEADS, KV_HEADS, HEAD_DIM, vocab_size=vocab)
    model = ModelShape({name: tuple(view.shape) for name, view in whole.items()}, HEADS, KV_HEADS, HEAD_DIM, vocab)
    rows = 0
    for rank in range(tp):
        parameters = list(engine(bias=True, tp=tp).named_parameters())
        heads = (HEADS // tp, max(1, KV_HEADS // tp))
        views = hf_views(parameters, *heads, HEAD_DIM, vocab_size=vocab, tp=tp, rank=rank)
        boxes = {name: box.shape for name, box in receiver_regions(model, tp, rank).items()}
        assert {name: tuple(view.shape) for name, view in views.items()} == boxes
        if "model.embed_tokens.weight" in views:
            rows += len(views["model.embed_tokens.weight"])
            assert views["model.embed_tokens.weight"].data_ptr() == parameters[0][1].data_ptr()
    assert rows == vocab
