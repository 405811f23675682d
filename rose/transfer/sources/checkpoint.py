"""A Hugging Face checkpoint folder, whose files are mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import TensorInfo
from rose.transfer.sources.rank_tensors import RankTensor

_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class Checkpoint:
    """The tensors in `folder`, without a tied output head. Raises TransferError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, RankTensor] = {}
        for file, names in files_of(folder).items():
            self.tensors |= mapped(file, names)
        config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
        heads = [name for name in self.tensors if name.endswith(HEAD)]
        self.tied = bool(config.get("tie_word_embeddings")) or not heads
        for name in heads if self.tied else []:
            del self.tensors[name]


def files_of(folder: Path) -> dict[Path, list[str]]:
    """Return the files, each with its tensors' names (an empty list: all tensors of the file)."""
    if (index := folder / INDEX).exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise TransferError(f"{index} names no files in `weight_map`: save the checkpoint again")
        files: dict[Path, list[str]] = {}
        for name, file in weight_map.items():
            files.setdefault(folder / str(file), []).append(name)
        return files
    if (single := folder / _SINGLE).exists():
        return {single: []}
    raise TransferError(f"folder {str(folder)!r} has neither {INDEX} nor {_SINGLE}: give a Hugging Face checkpoint")


def mapped(file: Path, names: Sequence[str] = ()) -> dict[str, RankTensor]:
    try:
        tensors: Any = safe_open(file, framework="pt")
        present = set(tensors.keys())
        result = {}
        for name in names or present:
            if name not in present:
                raise TransferError(f"{file} lacks tensor {name!r}, which the folder's index puts there")
            about = tensors.get_slice(name)
            if (dtype := about.get_dtype()) not in _DTYPES:
                raise TransferError(f"tensor {name!r} in {file} is {dtype}, expected one of {', '.join(_DTYPES)}")
            info = TensorInfo(name, _DTYPES[dtype], tuple(about.get_shape()))
            result[name] = RankTensor.whole(info, partial(tensors.get_tensor, name))
    except (OSError, SafetensorError) as error:
        raise TransferError(f"{file} cannot be read ({error}): save it again") from None
    return result


def read_json(path: Path) -> Mapping[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TransferError(f"{path} cannot be read ({error}): save it again") from None
    if not isinstance(table, dict):
        raise TransferError(f"{path} holds no JSON object: save it again")
    return table
