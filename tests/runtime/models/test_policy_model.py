import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from rose.runtime.models.policy_model import Policy, PolicyShape
from rose.runtime.platform.cpu import define_torchvision

SHAPE = PolicyShape(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    Policy(SHAPE, seed=1).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("tied", [False, True])
def test_same_logits_as_transformers(checkpoint: Path, tied: bool) -> None:
    Policy(replace(SHAPE, tie_word_embeddings=tied), seed=1).save(checkpoint)
    if not torch.cuda.is_available():
        define_torchvision()
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ours = Policy.load(checkpoint)
    ids = torch.randint(0, SHAPE.vocab_size, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(ours.lm_head(ours(ids)), theirs(ids).logits, atol=1e-4)
    assert {name: weight.shape for name, weight in ours.weights().items()} == {
        name: parameter.shape for name, parameter in theirs.named_parameters()
    }


def test_checkpoint_round_trip_is_exact_in_bfloat16(checkpoint: Path) -> None:
    loaded = Policy.load(checkpoint)
    assert loaded.shape == SHAPE
    before, after = Policy(SHAPE, seed=1).weights(), loaded.weights()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {weight.dtype for weight in after.values()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


def test_tied_weights_are_one_tensor_and_are_published_once(checkpoint: Path) -> None:
    Policy(replace(SHAPE, tie_word_embeddings=True), seed=1).save(checkpoint)
    with safe_open(checkpoint / "model.safetensors", "pt") as kept:
        names = set(kept.keys())
    loaded = Policy.load(checkpoint)
    assert set(loaded.weights()) == names
    assert "lm_head.weight" not in names
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_another_architecture_is_refused(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    with pytest.raises(ValueError, match="attention_bias is True"):
        Policy.load(checkpoint)
