"""Which rank publishes what, decided from what all ranks have."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.transfer.shards import grid
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region
from rose.transfer.package.manifest import TensorInfo
from rose.transfer.sources.rank_tensors import RankTensor
from rose.transfer.sources.sharing import offers, share
from tests.long_form import usual


def offered(name: str, *boxes: tuple[int, int], rows: int = 6, dtype: str = "bfloat16", tied: bool = False):
    held = {Region((start,), (stop,)): torch.zeros(stop - start) for start, stop in boxes}
    return offers({name: RankTensor(TensorInfo(name, dtype, (rows,)), held, tied)})


@settings(max_examples=usual(50, long=1000))
@given(st.data())
def test_every_box_is_published_by_one_rank_that_has_it(data) -> None:
    ranks: list[list] = [[] for _ in range(data.draw(st.integers(1, 4)))]
    wanted: dict[str, int] = {}
    for name in "abc":
        shape = (data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)))
        wanted[name] = shape[0] * shape[1]
        edges = [Region((0, 0), (data.draw(st.integers(1, shape[0])), data.draw(st.integers(1, shape[1]))))]
        held: list[dict[Region, torch.Tensor]] = [{} for _ in ranks]
        for box in grid(Region.whole(shape), edges):
            for rank in data.draw(st.sets(st.integers(0, len(ranks) - 1), min_size=1)):
                held[rank][box] = torch.zeros(box.shape)
        for offered_by_rank, boxes in zip(ranks, held, strict=True):
            offered_by_rank.extend(offers({name: RankTensor(TensorInfo(name, "float32", shape), boxes)}))
    shares = share(ranks, wanted)
    published = [each for boxes in shares for each in boxes]
    assert len(published) == len(set(published))
    for name, elements in wanted.items():
        assert sum(box.elements for other, box in published if other == name) == elements
    for rank, boxes in zip(ranks, shares, strict=True):
        assert boxes <= {(info.name, box) for info, held_boxes, _ in rank for box in held_boxes}


def test_ranks_that_have_the_same_share_the_work() -> None:
    whole = [offer for name in "abcd" for offer in offered(name, (0, 6))]
    assert [len(boxes) for boxes in share([whole, whole], None)] == [2, 2]


def test_stages_of_a_pipeline_may_have_different_names() -> None:
    shares = share([offered("a", (0, 6)), offered("b", (0, 6))], ["a", "b"])
    assert [{name for name, _ in boxes} for boxes in shares] == [{"a"}, {"b"}]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([offered("w", (0, 3)), offered("w", (2, 6))], r"'w': \[0:3\] of rank 0 and \[2:6\] of rank 1 overlap"),
        ([offered("w", (0, 3)), offered("w", (4, 6))], r"'w': 2 ranks have 5 of its 6 elements"),
        ([offered("w", (0, 3))], r"'w': 1 ranks have 3 of its 6 .* with `group`"),
        ([offered("w", (0, 6)), offered("w", (0, 6), dtype="float32")], r"'w' is float32\[6\] on rank 1, and bfloat16"),
        ([offered("w", (0, 6)), offered("w", (0, 6), rows=7)], r"'w' is bfloat16\[7\] on rank 1, and bfloat16\[6\]"),
        ([offered("v", (0, 6))], r"tensors \['w'\] of the model's checkpoint are missing"),
        ([[]], "no tensors to publish"),
    ],
)
def test_parts_that_do_not_make_up_the_model_are_refused_by_name(ranks, message) -> None:
    with pytest.raises(TransferError, match=message):
        share(ranks, ["w"] if ranks[0] else None)
