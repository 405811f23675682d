from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from rose.runtime.coserving.weights.parameters import SecondSet


def model():
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    return made.requires_grad_(False)


def doubled(engine):
    """A second set whose weights are twice what the engine has, and a model that has those."""
    second = SecondSet(engine.named_parameters())
    for tensor in second.tensors.values():
        tensor.mul_(2)
    other = model()
    other.load_state_dict({name: 2 * value for name, value in engine.state_dict().items()})
    return second, other


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_a_model_computes_with_the_second_set_once_it_was_swapped_in_and_not_before(mode):
    engine, inputs = model(), torch.randn(3, 6)
    with mode():
        before = engine(inputs)
    second, other = doubled(engine)
    addresses = {name: tensor.data_ptr() for name, tensor in second.tensors.items()}
    with mode():
        assert torch.equal(engine(inputs), before)
        second.swap()
        assert torch.equal(engine(inputs), other(inputs))
    assert {name: parameter.data_ptr() for name, parameter in engine.named_parameters()} == addresses


def test_what_was_swapped_out_is_as_it_was_and_can_be_swapped_in_again():
    engine = model()
    state = {name: value.clone() for name, value in engine.state_dict().items()}
    second, _ = doubled(engine)
    second.swap()
    assert all(torch.equal(second.tensors[name], value) for name, value in state.items())
    second.swap()
    assert all(torch.equal(value, state[name]) for name, value in engine.state_dict().items())


def test_views_and_ties_of_a_parameter_follow_it():
    engine = model()
    engine.tied = engine[2]
    engine[0].flat = engine[0].weight.view(-1)
    engine.same_memory = torch.nn.Parameter(engine[0].bias.data, requires_grad=False)
    before = {name: parameter.data_ptr() for name, parameter in engine.named_parameters()}
    second = SecondSet(engine.named_parameters())
    for tensor in second.tensors.values():
        tensor.mul_(2)
    doubles = {name: 2 * value for name, value in model().state_dict().items()}
    second.swap()
    assert torch.equal(engine[0].flat, doubles["0.weight"].view(-1))
    assert torch.equal(engine.same_memory, doubles["0.bias"])
    assert torch.equal(engine.tied.weight, doubles["2.weight"])
    stayed = {name for name, parameter in engine.named_parameters() if parameter.data_ptr() == before[name]}
    assert stayed == {"0.weight", "0.bias", "same_memory"}


def test_a_parameter_made_for_inference_only_can_be_used_afterwards():
    with torch.inference_mode():
        engine = model()
        second, other = doubled(engine)
        second.swap()
        inputs = torch.randn(2, 6)
        assert torch.equal(engine(inputs), other(inputs))
