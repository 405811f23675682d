import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.transfer.shards import cells, grid, pieces
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.layout.shards import ModelShape, receiver_regions
from tests.transfer.random_model import RANKS, Arrays, models, random_weights, runs_on

LAYER = "model.layers.0"


def sglang_holds(weights: Arrays, model: ModelShape, tp: int, rank: int) -> Arrays:
    """A rank of SGLang written down anew: fill its fused parameters as its loaders do, then take the parts out."""
    q_heads, kv_heads = model.num_heads // tp, max(1, model.num_kv_heads // tp)
    kv_rank = rank // max(1, tp // model.num_kv_heads)
    rows = {
        "q_proj": q_heads * model.head_dim,
        "k_proj": kv_heads * model.head_dim,
        "v_proj": kv_heads * model.head_dim,
    }
    per_rank = next(padded // tp for padded in padded_sizes(model.vocab_size, tp) if padded % tp == 0)
    held: Arrays = {}
    for name, array in weights.items():
        module, leaf = name.split(".")[-2:] if "." in name else ("", name)
        if module in rows:
            fused = np.zeros((sum(rows.values()), *array.shape[1:]), array.dtype)
            offset = {"q_proj": 0, "k_proj": rows["q_proj"], "v_proj": rows["q_proj"] + rows["k_proj"]}[module]
            size, source = rows[module], rank if module == "q_proj" else kv_rank
            fused[offset : offset + size] = array[source * size : source * size + size]
            held[name] = fused[offset : offset + size]
        elif module in ("gate_proj", "up_proj"):
            held[name] = np.split(array, tp)[rank]
        elif module in ("o_proj", "down_proj") and leaf == "weight":
            held[name] = np.split(array, tp, axis=1)[rank]
        elif module in ("embed_tokens", "lm_head"):
            tokens = [token for token in range(model.vocab_size) if token // per_rank == rank]
            if tokens:
                held[name] = array[tokens]
        else:
            held[name] = array
    return held


def padded_sizes(vocab_size: int, tp: int) -> list[int]:
    return [-(-vocab_size // multiple) * multiple for multiple in (64, 64 * tp)]


@given(models(), st.sampled_from(RANKS))
def test_a_receiver_holds_what_sglang_loads(model: ModelShape, tp: int) -> None:
    if not runs_on(model, tp):
        with pytest.raises(TransferError, match=f"{tp} "):
            receiver_regions(model, tp, 0)
        return
    weights = random_weights(model)
    for rank in range(tp):
        regions = receiver_regions(model, tp, rank)
        expected = sglang_holds(weights, model, tp, rank)
        assert list(regions) == list(expected)
        for name, region in regions.items():
            np.testing.assert_array_equal(weights[name][region.slices], expected[name], err_msg=name)


def vocabulary(vocab_size: int, heads: int, kv_heads: int = 1) -> ModelShape:
    return ModelShape({"model.embed_tokens.weight": (vocab_size, 4)}, heads, kv_heads, 2, vocab_size)


@pytest.mark.parametrize(
    ("vocab_size", "tp", "rows"),
    [
        (100, 2, [(0, 64), (64, 100)]),
        (100, 4, [(0, 32), (32, 64), (64, 96), (96, 100)]),
        (100, 8, [*((16 * r, 16 * r + 16) for r in range(6)), (96, 100), None]),
        (100, 6, [(0, 64), (64, 100), None, None, None, None]),
        (64, 128, [(0, 64), *(None for _ in range(127))]),
        (49152, 2, [(0, 24576), (24576, 49152)]),
    ],
)
def test_the_vocabulary_ends_before_its_padding(vocab_size: int, tp: int, rows: list[tuple[int, int] | None]) -> None:
    held = [receiver_regions(vocabulary(vocab_size, tp), tp, rank) for rank in range(tp)]
    assert [next(((r.start[0], r.stop[0]) for r in regions.values()), None) for regions in held] == rows


@given(models(), st.sampled_from(RANKS))
def test_cells_cover_once_and_no_receiver_splits_one(model: ModelShape, tp: int) -> None:
    if not runs_on(model, tp):
        return
    cut = cells(model, tp)
    finest = [receiver_regions(model, tp, rank) for rank in range(tp)]
    for name in model.shapes:
        counts = np.zeros(model.published(name).shape, int)
        for cell in cut[name]:
            counts[cell.region.slices] += 1
            assert cell.holders
            assert cell.holders == {r for r in range(tp) if name in finest[r] and finest[r][name].contains(cell.region)}
        assert (counts == 1).all()
        for count in (count for count in RANKS if tp % count == 0 and runs_on(model, count)):
            for rank in range(count):
                region = receiver_regions(model, count, rank).get(name)
                if region is not None:
                    shared = [cell.region.intersect(region) for cell in cut[name]]
                    assert all(box in (None, cell.region) for box, cell in zip(shared, cut[name], strict=True))
                    assert sum(box.elements for box in shared if box) == region.elements


@given(st.data(), models(), st.sampled_from(RANKS))
def test_the_pieces_of_a_trainer_s_boxes_lie_in_one_cell_each(data: st.DataObject, model: ModelShape, tp: int) -> None:
    if not runs_on(model, tp):
        return
    cut = cells(model, tp)
    held: dict[str, tuple[Region, ...]] = {}
    for name in model.shapes:
        whole = model.published(name)
        edge = tuple(data.draw(st.integers(0, side)) for side in whole.shape)
        held[name] = tuple(grid(whole, [Region((0,) * len(edge), edge)]))
    sent = pieces(held, cut)
    for name in model.shapes:
        counts = np.zeros(model.published(name).shape, int)
        for piece in (piece for piece in sent if piece.name == name):
            counts[piece.region.slices] += 1
            assert any(box.contains(piece.region) for box in held[name])
            (cell,) = [cell for cell in cut[name] if cell.region.contains(piece.region)]
            assert piece.holders == cell.holders
        assert (counts == 1).all()


def test_a_box_outside_of_the_model_is_refused() -> None:
    model = vocabulary(70, 1)
    with pytest.raises(TransferError, match=r"\[0:71, 0:4\] has only 280 elements"):
        pieces({"model.embed_tokens.weight": (Region((0, 0), (71, 4)),)}, cells(model, 1))
