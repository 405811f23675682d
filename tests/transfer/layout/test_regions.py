import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.transfer.shards import grid
from rose.transfer.errors import TransferError
from rose.transfer.layout.regions import Region, overlapping, tiles

SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple)


def boxes(shape: tuple[int, ...]) -> st.SearchStrategy[Region]:
    sides = [st.tuples(st.integers(0, side), st.integers(0, side)).map(sorted) for side in shape]
    return st.tuples(*sides).map(lambda box: Region(tuple(a for a, _ in box), tuple(b for _, b in box)))


def mask(shape: tuple[int, ...], region: Region | None) -> np.ndarray:
    filled = np.zeros(shape, bool)
    if region is not None:
        filled[region.slices] = True
    return filled


@given(st.data())
def test_a_region_is_the_set_of_its_elements(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    a, b = data.draw(boxes(shape)), data.draw(boxes(shape))
    both = mask(shape, a) & mask(shape, b)
    assert a.elements == mask(shape, a).sum()
    assert mask(shape, a)[a.slices].shape == a.shape
    np.testing.assert_array_equal(mask(shape, a.intersect(b)), both)
    assert (a.intersect(b) is None) == (not both.any())
    if b.elements:
        assert a.contains(b) == bool(mask(shape, a)[b.slices].all())
    if a.contains(b):
        array = np.arange(mask(shape, None).size).reshape(shape)
        np.testing.assert_array_equal(array[a.slices][b.within(a).slices], array[b.slices])
    else:
        with pytest.raises(TransferError, match="is not inside of"):
            b.within(a)
    for axis in range(len(shape)):
        slab = np.zeros(shape, bool)
        slab[(slice(None),) * axis + (slice(1, 4),)] = True
        np.testing.assert_array_equal(mask(shape, a.between(axis, 1, 4)), mask(shape, a) & slab)


@given(st.data())
def test_boxes_tile_if_each_element_lies_in_one(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    whole, cutters = Region.whole(shape), data.draw(st.lists(boxes(shape), max_size=3))
    regions = data.draw(st.permutations(grid(whole, cutters)))
    assert tiles(whole, regions)
    others = [*regions[data.draw(st.integers(0, 1)) :], *data.draw(st.lists(boxes(shape), max_size=3))]
    counts = sum((mask(shape, region).astype(int) for region in others), np.zeros(shape, int))
    assert tiles(whole, others) == bool((counts == 1).all())


@given(st.data())
def test_a_grid_covers_once_and_splits_no_region(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    regions = data.draw(st.lists(boxes(shape), max_size=4))
    whole = data.draw(boxes(shape).filter(lambda box: box.elements > 0))
    cut = grid(whole, regions)
    assert cut == sorted(cut)
    np.testing.assert_array_equal(sum(mask(shape, box).astype(int) for box in cut), mask(shape, whole))
    for box in cut:
        for region in regions:
            assert box.intersect(region) in (None, box)


@given(st.data())
def test_an_overlap_is_found_exactly_when_there_is_one(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    regions = data.draw(st.lists(boxes(shape).filter(lambda box: box.elements > 0), max_size=5))
    counts = sum((mask(shape, region).astype(int) for region in regions), np.zeros(shape, int))
    pair = overlapping(regions)
    assert (pair is None) == (counts.max() <= 1)
    if pair:
        assert (mask(shape, pair[0]) & mask(shape, pair[1])).any()
