from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.coserving.kv.kv_blocks import Blocks, block_slots, runs


@st.composite
def pools(draw):
    blocks = Blocks(draw(st.integers(1, 300)), draw(st.integers(1, 40)))
    blocks.mapped = {0, *draw(st.sets(st.integers(0, blocks.count - 1)))}
    mapped = blocks.slots_within(sorted(blocks.mapped))
    used = draw(st.sets(st.sampled_from(mapped.tolist()))) if len(mapped) else set()
    free = draw(st.permutations([slot for slot in mapped.tolist() if slot not in used]))
    return blocks, used, np.array(free, dtype=np.int64)


@given(rows=st.lists(st.integers(1, 40_960), min_size=1, max_size=3), granularity=st.sampled_from([4096, 2 << 20]))
def test_a_block_of_a_small_pool_is_the_fewest_slots_that_are_whole_pieces_in_each_buffer(rows, granularity):
    slots = block_slots(rows, granularity, 1)
    assert all(slots * row % granularity == 0 for row in rows)
    for divisor in (prime for prime in (2, 3, 5, 7, 11, 13) if slots % prime == 0):
        assert any(slots // divisor * row % granularity for row in rows)


@given(pools(), st.integers(0, 320))
def test_no_block_with_a_slot_in_use_is_given_back_and_what_is_kept_is_enough(pool, keep):
    blocks, used, free = pool
    before = blocks.mapped_slots
    chosen = blocks.to_unmap(free, keep)
    assert 0 not in chosen, "slot 0 takes the writes of padding"
    assert set(chosen) <= blocks.mapped
    assert used.isdisjoint(blocks.slots_within(chosen).tolist())
    blocks.mapped.difference_update(chosen)
    assert blocks.mapped_slots == before - len(blocks.slots_within(chosen))
    assert blocks.mapped_slots >= min(keep, before)
    for number in blocks.mapped - {0}:
        within = set(blocks.slots_within([number]).tolist())
        assert within & used or blocks.mapped_slots - len(within) < keep, "all that could go has gone"


@given(pools(), st.integers(0, 320))
def test_no_more_is_brought_in_than_it_takes_and_the_lowest_first(pool, tokens):
    blocks, _, _ = pool
    chosen = blocks.to_map(tokens)
    assert blocks.mapped.isdisjoint(chosen)
    assert chosen == sorted(chosen)
    lower = set(range(max(chosen, default=0)))
    assert lower <= blocks.mapped | set(chosen)
    last, before = chosen[-1:], blocks.mapped_slots
    blocks.mapped.update(chosen)
    assert blocks.mapped_slots >= min(tokens, blocks.slots)
    if last:
        assert blocks.mapped_slots - blocks.size(last[0]) < tokens
    else:
        assert before == blocks.mapped_slots


@given(st.sets(st.integers(0, 60)))
def test_runs_are_what_they_were_made_of(numbers):
    made = runs(numbers)
    assert sorted(number for begin, end in made for number in range(begin, end)) == sorted(numbers)
    assert all(end < begin for (_, end), (begin, _) in pairwise(made))
