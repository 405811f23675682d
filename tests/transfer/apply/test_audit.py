from contextlib import contextmanager

import pytest
import torch

from benchmarks.transfer.shards import ShardedStore
from rose.transfer import turns
from rose.transfer.apply.audit import find_drift, fingerprints
from rose.transfer.codec.bits import to_bits
from rose.transfer.codec.fingerprint import of_bits
from rose.transfer.layout.shards import receiver_regions
from tests.runtime.coserving.hand_made_engine import random_weights, shape


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Weights, and the manifest of them as published for up to two ranks."""
    weights = random_weights()
    store = ShardedStore(tmp_path_factory.mktemp("store"), tp=2, model=shape())
    return weights, store.publish(3, weights)[0]


@pytest.mark.parametrize(("dtype", "portion_bytes"), [(torch.bfloat16, 1 << 20), (torch.float32, 2000)])
def test_one_bit_is_found_wherever_it_is_and_however_it_is_read(published, dtype, portion_bytes, monkeypatch):
    monkeypatch.setattr(turns, "PORTION_BYTES", portion_bytes)
    weights, manifest = published
    for name, tensor in weights.items():
        for index in (0, tensor.numel() - 1):
            views = {name: tensor.to(dtype).clone() for name, tensor in weights.items()}
            flat = views[name].reshape(-1)
            flat.view(torch.int16 if dtype is torch.bfloat16 else torch.int32)[index] ^= 1
            found = find_drift(views, manifest)
            assert found is not None
            assert repr(name) in found


def test_a_value_that_the_published_type_cannot_hold_is_a_finding_though_it_rounds_to_what_was_published(published):
    weights, manifest = published
    views = {name: tensor.float() for name, tensor in weights.items()}
    views["model.norm.weight"][1] *= 1 + 2**-20
    assert torch.equal(views["model.norm.weight"].bfloat16(), weights["model.norm.weight"])
    assert "bfloat16" in find_drift(views, manifest)


def test_a_tensor_of_another_shape_or_none_is_a_finding(published):
    weights, manifest = published
    assert "'model.norm.weight'" in find_drift({**weights, "model.norm.weight": torch.zeros(3)}, manifest)
    without = {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"}
    assert "'model.norm.weight'" in find_drift(without, manifest)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_held_to_its_own_part(published, rank):
    weights, manifest = published
    regions = receiver_regions(shape(), 2, rank)
    views = {name: weights[name][box.slices].clone() for name, box in regions.items()}
    assert find_drift(views, manifest, regions) is None
    views["model.layers.1.mlp.down_proj.weight"][0, 0] += 1
    assert "down_proj" in find_drift(views, manifest, regions)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fingerprints_are_those_of_what_was_published_and_tell_of_one_bit(published, dtype):
    weights, manifest = published
    views = {name: tensor.to(dtype).clone() for name, tensor in weights.items()}
    expected = {name: of_bits(to_bits(name, tensor)) for name, tensor in weights.items()}
    assert fingerprints({**views, "of no manifest": torch.zeros(1)}, manifest) == expected
    flat = views["model.norm.weight"].view(torch.int16 if dtype is torch.bfloat16 else torch.int32)
    flat[15] ^= 1
    actual = fingerprints(views, manifest)
    assert [name for name in expected if actual[name] != expected[name]] == ["model.norm.weight"]
    # The lowest bit of a float32 is none of a bfloat16.
    assert (actual["model.norm.weight"] is None) == (dtype is torch.float32)


class StopError(Exception):
    """What ends an audit."""


def test_each_portion_waits_for_its_turn_and_a_turn_can_end_the_audit(published, monkeypatch):
    monkeypatch.setattr(turns, "PORTION_BYTES", 100)
    weights, manifest = published
    entered = []

    @contextmanager
    def turn():
        entered.append(None)
        yield

    assert find_drift(weights, manifest, turn=turn) is None
    assert len(entered) >= sum(tensor.nbytes for tensor in weights.values()) / 100

    @contextmanager
    def no_turn():
        raise StopError
        yield

    with pytest.raises(StopError):
        find_drift(weights, manifest, turn=no_turn)
