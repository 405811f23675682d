"""Checkpoint folders as Hugging Face's libraries write them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

Weights = dict[str, torch.Tensor]


def weights(seed: int = 0, dtype: torch.dtype = torch.bfloat16, *, head: bool = True) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "model.embed_tokens.weight": (12, 4),
        "model.layers.0.self_attn.q_proj.weight": (6, 4),
        "model.layers.0.mlp.down_proj.weight": (4, 8),
        "model.norm.weight": (4,),
        **({"lm_head.weight": (12, 4)} if head else {}),
    }
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def save(folder: Path, tensors: Weights, *, files: int = 1, **config: object) -> Path:
    """Write a checkpoint of one or several files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    places = {}
    for number in range(files):
        name = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[number::files]}
        save_file(part, folder / name)
        places |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder
