from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from rose.runtime.engines.models import kv_bytes_per_token, weights_bytes
from rose.runtime.training.policy_model import Policy, PolicyShape

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_shape_of_a_known_model(tmp_path):
    folder = write(tmp_path, LLAMA_8B)
    assert kv_bytes_per_token(folder) == 131072
    assert kv_bytes_per_token(folder, "float32") == 2 * 131072
    # 8.03 billion parameters, two norms a layer aside.
    assert weights_bytes(folder) == pytest.approx(2 * 8_030_261_248, rel=1e-4)
    write(folder, {**LLAMA_8B, "tie_word_embeddings": True})
    assert weights_bytes(folder) == pytest.approx(2 * (8_030_261_248 - 128256 * 4096), rel=1e-4)


def test_weights_are_as_large_as_their_files(tmp_path):
    shape = PolicyShape(hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16)
    Policy(shape).save(tmp_path)
    count = sum(parameter.numel() for parameter in Policy(shape).parameters())
    assert weights_bytes(tmp_path) == pytest.approx(2 * count, rel=0.05)


def test_weights_that_lie_there_twice_are_counted_once(tmp_path):
    write(tmp_path, LLAMA_8B)
    for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
        save_file({"a": torch.zeros(1000)}, tmp_path / name)
    size = (tmp_path / "model-1.safetensors").stat().st_size
    assert weights_bytes(tmp_path) == 3 * size
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_bytes(tmp_path) == 2 * size


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json.*Name a local checkpoint folder"):
        kv_bytes_per_token(tmp_path)
    with pytest.raises(ValueError, match="num_attention_heads"):
        kv_bytes_per_token(write(tmp_path, {}))
    with pytest.raises(ValueError, match="hidden_size"):
        weights_bytes(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        weights_bytes(tmp_path)
