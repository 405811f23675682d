from __future__ import annotations

import pytest
import torch

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.layout.cuts import check_same_layout, cut_part, cut_whole
from rose.runtime.transfer.layout.regions import Region
from rose.runtime.transfer.layout.shards import ModelShape, Piece, cells
from rose.runtime.transfer.package.manifest import TensorInfo

MODEL = ModelShape({"embed_tokens.weight": (64, 3), "down_proj.weight": (3, 8), "norm.weight": (3,)}, 4, 2, 2, 50)


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in MODEL.shapes.items()}


def test_without_a_model_each_tensor_is_a_piece_and_tied_ones_are_left_out() -> None:
    given = {"a": torch.zeros(2, 3), "b": torch.zeros(()), "none": torch.empty(0, 2), "none_too": torch.empty(0, 2)}
    given |= {"tied": given["a"], "part": given["a"][:1], "turned": given["a"].T}
    cuts = cut_whole(given, None, {})
    assert [cut.info.name for cut in cuts] == ["a", "b", "none", "none_too", "part", "turned"]
    assert all(cut.region == Region.whole(tuple(cut.tensor.shape)) for cut in cuts)


def test_cells_cut_a_tensor_and_leave_the_padding_out() -> None:
    given = tensors()
    cuts = cut_whole(given, MODEL, cells(MODEL, 2))
    assert [(cut.info.name, cut.region.start, cut.region.stop, sorted(cut.holders)) for cut in cuts] == [
        ("embed_tokens.weight", (0, 0), (32, 3), [0]),
        ("embed_tokens.weight", (32, 0), (50, 3), [1]),
        ("down_proj.weight", (0, 0), (3, 4), [0]),
        ("down_proj.weight", (0, 4), (3, 8), [1]),
        ("norm.weight", (0,), (3,), [0, 1]),
    ]
    assert cuts[0].info == TensorInfo("embed_tokens.weight", "bfloat16", (50, 3))
    for cut in cuts:
        assert torch.equal(cut.tensor, given[cut.info.name][cut.region.slices])


def test_what_is_not_the_model_s_is_refused() -> None:
    cut = cells(MODEL, 2)
    with pytest.raises(TransferError, match="'lm_head' is not one of the model's 3"):
        cut_whole({"lm_head": torch.zeros(2)}, MODEL, cut)
    with pytest.raises(TransferError, match=r"'norm\.weight' has shape \[4\], expected \[3\]"):
        cut_whole({"norm.weight": torch.zeros(4)}, MODEL, cut)
    with pytest.raises(TransferError, match=r"'norm\.weight' is torch\.int64"):
        cut_whole({"norm.weight": torch.zeros(3, dtype=torch.int64)}, MODEL, cut)
    with pytest.raises(TransferError, match="no tensors"):
        cut_whole({}, MODEL, cut)


def test_a_rank_s_pieces() -> None:
    piece = Piece("norm.weight", Region((1,), (3,)), frozenset({0, 1}))
    (cut,) = cut_part({piece: torch.zeros(2)}, MODEL)
    assert (cut.info, cut.key, cut.holders) == (
        TensorInfo("norm.weight", "float32", (3,)),
        ("norm.weight", Region((1,), (3,))),
        frozenset({0, 1}),
    )
    assert cut_part({}, MODEL) == []
    with pytest.raises(TransferError, match=r"'norm\.weight' at \[1:3\] has shape \[3\]"):
        cut_part({piece: torch.zeros(3)}, MODEL)


def test_the_layout_stays_what_it_was() -> None:
    cuts = cut_whole(tensors(), None, {})
    before = [cut.info for cut in cuts]
    check_same_layout(before, cuts, 3, whole=True)
    check_same_layout(before, cuts[:1], 3, whole=False)
    with pytest.raises(TransferError, match=r"differ from version 3 in \['down_proj\.weight', 'norm\.weight'\]"):
        check_same_layout(before, cuts[:1], 3, whole=True)
    with pytest.raises(TransferError, match=r"differ from version 3 in \['norm\.weight'\]"):
        check_same_layout(before[:2], cuts, 3, whole=False)
    other = [*before[:2], TensorInfo("norm.weight", "float16", (3,))]
    with pytest.raises(TransferError, match=r"is bfloat16\[3\], expected float16\[3\] as in version 3"):
        check_same_layout(other, cuts, 3, whole=True)
