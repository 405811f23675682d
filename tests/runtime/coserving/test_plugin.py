from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.coserving.rollout import cache_key

clients = st.one_of(st.none(), st.text(alphabet="ro-v|0123", max_size=8), st.just("rose-1-v7|"))
states = st.sampled_from([(None, 0), (7, 1), (8, 2), (7, 3)])


@given(clients, clients, states, states)
def test_entries_of_other_weights_are_never_matched_whatever_a_client_sends(one, other, before, after):
    same = cache_key(one, *before) == cache_key(other, *after)
    assert same == (before == after and (one or "") == (other or ""))


def test_a_request_without_a_key_is_as_without_rose_until_weights_were_swapped_in():
    assert cache_key(None, None, 0) is None
    assert cache_key(None, 7, 1) is not None
