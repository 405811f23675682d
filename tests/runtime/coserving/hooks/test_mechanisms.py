import pytest

from rose.runtime.coserving.hooks.mechanisms import compute_mechanism, memory_mechanism


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"gated": False}, "exclusive"),
        ({"gated": True}, "layer-yield"),
        ({"gated": True, "decode_graphs": "full"}, "layer-graphs+layer-yield"),
        # What a fleet file's own arguments made of it: a replayed prefill has no gate between its layers.
        ({"gated": True, "decode_graphs": "full", "prefill_graphs": "breakable"}, "step-yield"),
        ({"gated": True, "decode_graphs": "breakable"}, "step-yield"),
        ({"gated": True, "mps": True, "native_kernels": True}, "native-kernels+mps+layer-yield"),
        ({"gated": True, "preemptible": True}, "idle-class+layer-yield"),
        ({"gated": False, "preemptible": True}, "exclusive"),
    ],
)
def test_a_compute_mechanism_is_what_the_facts_give(facts, name):
    assert compute_mechanism(**facts) == name


def test_a_memory_mechanism_is_what_happens_to_what_is_cut():
    assert memory_mechanism(pool="page-return", leased=True) == "page-return"
    assert memory_mechanism(pool=None, leased=True) == "leased+budget"
    assert memory_mechanism(pool=None, leased=False) == "budget"
