from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.layout.regions import Region
from rose.runtime.transfer.layout.shards import ModelShape, cells, pieces, receiver_regions
from rose.runtime.transfer.layout.trainer_layouts import (
    Layout,
    check_cover,
    fsdp,
    fsdp_flat,
    pipeline,
    replicated,
    tensor_parallel,
)
from tests.long_form import usual
from tests.runtime.transfer.random_model import INNER, Arrays, models, random_weights, runs_on

LAYOUTS = (replicated, fsdp, fsdp_flat, tensor_parallel, pipeline)
NORM = "model.norm.weight"
SIZES = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=usual(6, long=120), deadline=None)
@given(st.data(), models(), st.sampled_from(LAYOUTS))
def test_every_receiver_gets_its_bits_from_any_trainer(
    data: st.DataObject, model: ModelShape, kind: Callable[[int], Layout]
) -> None:
    """Trainer ranks know only what they hold; a receiver takes only the pieces inside of what it holds."""
    sizes = [size for size in (8, 4, 2, 1) if runs_on(model, size)]
    tp = data.draw(st.sampled_from(sizes), "receiver ranks")
    ranks = data.draw(st.sampled_from(sizes) if kind is tensor_parallel else SIZES, "trainer ranks")
    weights, layout, cut = random_weights(model), kind(ranks), cells(model, tp)
    check_cover(model, layout)
    sent: list[tuple[str, Region, np.ndarray]] = []
    for rank in range(ranks):
        held = layout.regions(model, rank)
        shards = {(name, region): weights[name][region.slices].copy() for name in held for region in held[name]}
        for piece in pieces(held, cut):
            outer = next(region for region in held[piece.name] if region.contains(piece.region))
            sent.append((piece.name, piece.region, shards[piece.name, outer][piece.region.within(outer).slices]))
    counts = {name: np.zeros(model.published(name).shape, int) for name in model.shapes}
    for name, region, _ in sent:
        counts[name][region.slices] += 1
    assert all((count == 1).all() for count in counts.values())

    for count in (size for size in sizes if tp % size == 0):
        for rank in range(count):
            wanted = receiver_regions(model, count, rank)
            arrays: Arrays = {name: np.zeros(region.shape, np.uint32) for name, region in wanted.items()}
            for name, region, values in sent:
                if name in wanted and wanted[name].intersect(region):
                    arrays[name][region.within(wanted[name]).slices] = values
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, weights[name][wanted[name].slices], err_msg=name)


def small(layers: int = 3) -> ModelShape:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (12, 4)}
    for layer in range(layers):
        shapes[f"model.layers.{layer}.self_attn.q_proj.weight"] = (8, 4)
        shapes[f"model.layers.{layer}.self_attn.k_proj.weight"] = (4, 4)
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (4, INNER)
    return ModelShape({**shapes, "model.norm.weight": (4,), "lm_head.weight": (12, 4)}, 4, 2, 2, vocab_size=9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: (Region((0,), (3,)),), 1: (Region((2,), (4,)),)}, r"\[0:3\] and \[2:4\] overlap"),
        ({0: (Region((0,), (2,)),), 1: (Region((3,), (4,)),)}, "the ranks publish 3 of its 4 elements"),
        ({0: (), 1: ()}, "the ranks publish 0 of its 4 elements"),
        ({0: (Region((0,), (2,)),), 1: (Region((2,), (5,)),)}, r"rank 1 holds \[2:5\], outside of its shape \(4,\)"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(change: dict[int, tuple[Region, ...]], message: str) -> None:
    sound = fsdp(2)
    layout = Layout(2, lambda model, rank: {**sound.held(model, rank), NORM: change[rank]})
    check_cover(small(), sound)
    with pytest.raises(TransferError, match=rf"tensor 'model\.norm\.weight': {message}"):
        check_cover(small(), layout)
