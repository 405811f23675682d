"""LoRA folders, merged at publication."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.runtime.platform.cpu import define_torchvision
from rose.transfer.errors import TransferError
from rose.transfer.sources.checkpoint import Checkpoint
from tests.transfer.sources.checkpoints import Weights, read_whole, save, weights
from tests.transfer.sources.test_published import published, same

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
#: Of PEFT's own file the options that concern a merge, and some that do not.
CONFIG = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 3,
    "use_rslora": False,
    "bias": "none",
    "use_dora": False,
    "modules_to_save": None,
    "loftq_config": {},
    "rank_pattern": {},
    "init_lora_weights": True,
    "target_modules": ["q_proj", "down_proj"],
    "megatron_core": "megatron.core",
    "base_model_name_or_path": None,
}


def adapter(folder: Path, parts: Weights | None = None, **config: object) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(lora() if parts is None else parts, folder / "adapter_model.safetensors")
    return folder


def lora() -> Weights:
    generator = torch.Generator().manual_seed(5)
    shapes = {
        f"base_model.model.{Q}.lora_A.weight": (2, 4),
        f"base_model.model.{Q}.lora_B.weight": (6, 2),
        f"base_model.model.{DOWN}.lora_A.weight": (3, 8),  # A rank of its own.
        f"base_model.model.{DOWN}.lora_B.weight": (4, 3),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def expected(base: Weights, scales: dict[str, float]) -> Weights:
    """Merge in float64, where a product of float32 numbers is exact to far below a bfloat16's last place."""
    new = dict(base)
    for module, scale in scales.items():
        up, down = (lora()[f"base_model.model.{module}.lora_{part}.weight"].double() for part in "BA")
        new[f"{module}.weight"] = (base[f"{module}.weight"].double() + scale * up @ down).bfloat16()
    return new


@pytest.mark.parametrize(
    ("rslora", "scales"), [(False, {Q: 3 / 2, DOWN: 3 / 3}), (True, {Q: 3 / 2**0.5, DOWN: 3 / 3**0.5})]
)
def test_an_adapter_is_merged_in_float32_and_then_rounded(tmp_path: Path, rslora: bool, scales) -> None:
    base = weights(1)
    folder = save(tmp_path / "base", base)
    source = read_whole(adapter(tmp_path / "lora", use_rslora=rslora), Checkpoint(folder))
    assert same(published(source), expected(base, scales))
    assert sorted(source.merged) == sorted(f"{module}.weight" for module in scales)
    # Without a checkpoint, the base is the folder that the adapter names.
    named = adapter(tmp_path / "named", use_rslora=rslora, base_model_name_or_path=str(folder))
    assert same(published(read_whole(named, None)), expected(base, scales))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"an_option_of_next_year": 1}, "an_option_of_next_year is 1"),
        ({"lora_alpha": "8"}, "lora_alpha is '8', expected a number"),
    ],
)
def test_an_option_that_is_not_merged_is_refused_by_name(tmp_path: Path, config: dict[str, object], message) -> None:
    base = Checkpoint(save(tmp_path / "base", weights(1)))
    with pytest.raises(TransferError, match=message):
        read_whole(adapter(tmp_path / "lora", **config), base)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model.model.other.lora_A.weight": (2, 4), "base_model.model.other.lora_B.weight": (6, 2)}, "lacks"),
        ({f"base_model.model.{Q}.lora_A.weight": (2, 5)}, r"do not fit .*q_proj.weight' of \[6, 4\]"),
        (
            {f"base_model.model.{Q}.lora_magnitude_vector": (6,)},
            "lora_magnitude_vector' is not a matrix of a LoRA pair",
        ),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": (2, 4)}, "lora_embedding_A' is not a matrix"),
    ],
)
def test_a_part_without_its_counterpart_is_refused_by_name(tmp_path: Path, change, message: str) -> None:
    base = Checkpoint(save(tmp_path / "base", weights(1)))
    parts = lora() | {name: torch.zeros(shape) for name, shape in change.items()}
    with pytest.raises(TransferError, match=message):
        read_whole(adapter(tmp_path / "lora", parts), base)


def test_an_adapter_without_its_base_is_refused(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora", base_model_name_or_path="owner/model")
    with pytest.raises(TransferError, match=r"base_model_name_or_path is 'owner/model', and not a folder of this host"):
        read_whole(folder, None)


def test_what_peft_writes_is_merged_as_peft_merges_it(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        define_torchvision()
    peft = pytest.importorskip("peft", reason="needs PEFT: pip install peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(tmp_path / "base")
    options = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
    wrapped = peft.get_peft_model(model.float(), peft.LoraConfig(**options, rank_pattern={"q_proj": 2}))
    wrapped.save_pretrained(tmp_path / "lora")
    merged = wrapped.merge_and_unload().bfloat16().state_dict()
    source = read_whole(tmp_path / "lora", Checkpoint(tmp_path / "base"))
    names = load_file(tmp_path / "base" / "model.safetensors")
    assert same(published(source), {name: merged[name] for name in names})
    assert len(source.merged) == 4
