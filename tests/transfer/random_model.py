"""Small models of the shapes that matter: grouped heads, padded vocabularies, biases, tied embeddings, odd extras."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from rose.transfer.layout.shards import ModelShape

HIDDEN, INNER, HEAD_DIM = 5, 24, 2
#: Numbers of ranks that divide INNER; the heads allow some of them.
RANKS = (1, 2, 3, 4, 6, 8, 12)

Arrays = dict[str, npt.NDArray[np.uint32]]


@st.composite
def models(draw: st.DrawFn) -> ModelShape:
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3, 4, 6]))
    vocab = draw(st.integers(1, 300))
    padding = draw(st.sampled_from([0, 0, 1, 28]))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab + padding, HIDDEN)}
    bias, norms = draw(st.booleans()), draw(st.booleans())
    for layer in range(draw(st.integers(1, 3))):
        path = f"model.layers.{layer}"
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            shapes[f"{path}.self_attn.{part}_proj.weight"] = (count * HEAD_DIM, HIDDEN)
            if bias:
                shapes[f"{path}.self_attn.{part}_proj.bias"] = (count * HEAD_DIM,)
        if norms:
            shapes[f"{path}.self_attn.q_norm.weight"] = shapes[f"{path}.self_attn.k_norm.weight"] = (HEAD_DIM,)
        shapes[f"{path}.self_attn.o_proj.weight"] = (HIDDEN, heads * HEAD_DIM)
        if bias:
            shapes[f"{path}.self_attn.o_proj.bias"] = (HIDDEN,)
        shapes[f"{path}.mlp.gate_proj.weight"] = shapes[f"{path}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{path}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{path}.input_layernorm.weight"] = (HIDDEN,)
    shapes["model.norm.weight"] = (HIDDEN,)
    if not draw(st.booleans()):
        shapes["lm_head.weight"] = (vocab + padding, HIDDEN)
    if draw(st.booleans()):
        shapes |= {"visual.patch.weight": (3, 2, 4), "temperature": ()}
    return ModelShape(shapes, heads, kv_heads, HEAD_DIM, vocab)


def random_weights(model: ModelShape, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(1, 2**32, shape, dtype=np.uint32) for name, shape in model.shapes.items()}


def runs_on(model: ModelShape, tp: int) -> bool:
    """SGLang's own condition, as its attention layers assert it."""
    large, small = max(model.num_kv_heads, tp), min(model.num_kv_heads, tp)
    return model.num_heads % tp == 0 and large % small == 0
