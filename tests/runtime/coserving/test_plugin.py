import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.coserving.hooks.rollout import cache_key
from rose.runtime.coserving.plugin import _Attach

clients = st.one_of(st.none(), st.text(alphabet="ro-v|0123", max_size=8), st.just("rose-1-v7|"))
states = st.sampled_from([(None, 0), (7, 1), (8, 2), (7, 3)])


@given(clients, clients, states, states)
def test_entries_of_other_weights_are_never_matched_whatever_a_client_sends(one, other, before, after):
    same = cache_key(one, *before) == cache_key(other, *after)
    assert same == (before == after and (one or "") == (other or ""))


def test_a_request_without_a_key_is_as_without_rose_until_weights_were_swapped_in():
    assert cache_key(None, None, 0) is None
    assert cache_key(None, 7, 1) is not None


class RejectedError(Exception):
    pass


@pytest.mark.parametrize("value", [1.5, -3, math.nan, math.inf, -math.inf, "7", None, [7]])
def test_a_number_of_no_page_is_rejected_as_sglang_expects(value):
    with pytest.raises(RejectedError, match="rose_attach must be a page's number"):
        _Attach(None, RejectedError).validate("rose_attach", value)


@pytest.mark.parametrize("value", [0, 7, 7.0, 1e300, -1, -2])
def test_a_number_of_a_page_is_taken(value):
    _Attach(None, RejectedError).validate("rose_attach", value)
