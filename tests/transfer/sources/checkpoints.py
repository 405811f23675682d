"""Checkpoint folders as Hugging Face's libraries write them."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
import zstandard
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from rose.transfer.codec.bits import to_bits
from rose.transfer.sources.checkpoint import Checkpoint
from rose.transfer.sources.published import Source, read

Weights = dict[str, torch.Tensor]


def read_whole(weights: Weights | Path, checkpoint: Checkpoint | None) -> Source:
    """Return what is published where no delta may be."""

    def newest() -> Any:
        raise AssertionError("only a delta needs an earlier version")

    return read(weights, checkpoint, newest)


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


def save_delta(
    folder: Path, before: Weights, after: Weights, version: int, encoding: str = "xor", **metadata: Any
) -> Path:
    """Write what changed between two versions as slime does: tensors without a change are left out."""
    folder.mkdir()
    changes, checksums = {}, {}
    for name, tensor in after.items():
        old, new = (to_bits(name, one).reshape(-1).view(np.uint8) for one in (before[name], tensor))
        change = old ^ new
        if not change.any():
            continue
        if encoding == "overwrite":
            (places,) = change.nonzero()
            count = np.array([len(places)], "<u4")
            change = np.concatenate([count.view(np.uint8), places.astype("<u4").view(np.uint8), new[places]])
        changes[name] = np.frombuffer(zstandard.ZstdCompressor(level=1).compress(change.tobytes()), np.uint8)
        adler = metadata.get("checksum_format") == "adler32"
        checksums[name] = f"{zlib.adler32(new.tobytes()):08x}" if adler else xxhash.xxh3_128(new.tobytes()).hexdigest()
    file = "model-00000-of-00001.safetensors"
    save_arrays(changes, folder / file, metadata=checksums)
    described = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
        **metadata,
    }
    index = {"metadata": described, "weight_map": dict.fromkeys(changes, file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
