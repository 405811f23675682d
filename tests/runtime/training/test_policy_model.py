import json
from pathlib import Path

import pytest
import torch

from rose.runtime.engines.cpu import define_torchvision
from rose.runtime.training.policy_model import Policy, PolicyShape

SHAPE = PolicyShape(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    Policy(SHAPE, seed=1).save(tmp_path)
    return tmp_path


def test_same_logits_as_transformers(checkpoint: Path) -> None:
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


def test_another_architecture_is_refused(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(ValueError, match="tie_word_embeddings is True"):
        Policy.load(checkpoint)
